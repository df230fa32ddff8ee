#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use super::*;
use crate::fake::{Fake, VOCAB, greedy, plan, recurrent_plan};

const END: u32 = VOCAB - 1;

/// One token per printable ASCII character, the two bytes of é, and an end token.
fn tokenizer() -> Arc<Tokenizer> {
    let characters = ('!'..='~').chain(['Ã', '©']);
    let vocab: Vec<String> =
        characters.zip(0..).map(|(c, id)| format!("{:?}: {id}", c.to_string())).collect();
    let json = format!(
        r#"{{"version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": [{{"id": {END}, "content": "<|im_end|>", "special": true, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false}}],
        "pre_tokenizer": {{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}},
        "decoder": {{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}},
        "model": {{"type": "BPE", "vocab": {{{}}}, "merges": []}}}}"#,
        vocab.join(", ")
    );
    let tokenizer = Tokenizer::from_json(json.as_bytes(), None).unwrap();
    assert_eq!(
        (tokenizer.vocab_size(), tokenizer.end_of_generation().contains(&END)),
        (VOCAB as usize, true)
    );
    Arc::new(tokenizer)
}

fn session(slots: u32) -> Session<Fake> {
    Session::new(Engine::new(Fake::new(plan(256, slots, 16, slots))).unwrap(), tokenizer())
}

/// The fake's own continuation, up to its end token.
fn expected(prompt: &str, new: usize) -> (Vec<u32>, String) {
    let tokenizer = tokenizer();
    let ids = greedy(&tokenizer.encode(prompt, true, false).unwrap(), new);
    let ids: Vec<u32> = ids.into_iter().take_while(|&id| id != END).collect();
    let text = tokenizer.decode(&ids, true);
    (ids, text)
}

/// A prompt whose next `new` tokens have no end among them.
fn endless(new: usize) -> String {
    (0..500).map(|i| format!("prompt{i}")).find(|p| expected(p, new).0.len() == new).unwrap()
}

#[test]
fn pieces_add_up_to_the_text() {
    let prompt = endless(40);
    let (ids, text) = expected(&prompt, 40);
    let mut session = session(1);
    let mut read = vec![];
    let mut generation = session
        .generate(&prompt, &GenerateOptions::greedy(40))
        .unwrap()
        .on_prefill(|done, total| read.push((done, total)));
    let pieces: Vec<String> = generation.by_ref().map(Result::unwrap).collect();
    assert_eq!(pieces.concat(), text);
    assert!(pieces.len() > 1 && pieces.iter().all(|p| !p.is_empty()));
    assert_eq!(generation.tokens(), ids);
    assert_eq!(generation.finish_reason(), Some(FinishReason::Length));
    assert_eq!(generation.next().map(Result::unwrap), None);
    drop(generation);
    let total = prompt.len() as u32;
    assert_eq!(read, [(total.min(16), total)]);
    assert!(session.is_idle());
}

#[test]
fn end_tokens_end_it_unless_they_are_ignored() {
    let ended = |p: &String| (2..60).contains(&expected(p, 200).0.len());
    let prompt = (0..900).map(|i| format!("prompt{i}")).find(ended).unwrap();
    let (ids, text) = expected(&prompt, 200);
    let mut session = session(1);
    let mut generation = session.generate(&prompt, &GenerateOptions::default()).unwrap();
    assert_eq!(generation.text().unwrap(), text);
    assert_eq!(generation.finish_reason(), Some(FinishReason::End(END)));
    drop(generation);
    let options = GenerateOptions { ignore_end: true, ..GenerateOptions::greedy(ids.len() as u32 + 5) };
    let mut generation = session.generate(&prompt, &options).unwrap();
    generation.text().unwrap();
    assert_eq!(generation.tokens().len(), ids.len() + 5);
    assert!(generation.tokens().contains(&END));
}

#[test]
fn a_stop_string_over_several_tokens_ends_the_text_before_it() {
    let prompt = endless(30);
    let (_, text) = expected(&prompt, 30);
    let stop: String = text.chars().skip(10).take(3).collect();
    let before = &text[..text.find(&stop).unwrap()];
    let mut session = session(1);
    let options = GenerateOptions { stop: vec!["never".into(), stop], ..GenerateOptions::greedy(30) };
    let mut generation = session.generate(&prompt, &options).unwrap();
    assert_eq!(generation.text().unwrap(), before);
    assert_eq!(generation.finish_reason(), Some(FinishReason::StopString(1)));
    drop(generation);
    assert!(session.is_idle() && session.engine().pool().is_idle());
    // An end that only might become a stop string is shown after all.
    let begun = format!("{}~never", &text.chars().last().unwrap());
    let options = GenerateOptions { stop: vec![begun], ..GenerateOptions::greedy(30) };
    assert_eq!(session.generate(&prompt, &options).unwrap().text().unwrap(), text);
    let empty = GenerateOptions { stop: vec![String::new()], ..Default::default() };
    assert!(matches!(session.generate("a", &empty), Err(RuntimeError::Refused(_))));
}

#[test]
fn dropping_an_answer_frees_its_pages_and_cancelling_ends_it() {
    let mut session = session(1);
    let prompt = endless(30);
    let mut generation = session.generate(&prompt, &GenerateOptions::greedy(30)).unwrap();
    generation.next().unwrap().unwrap();
    drop(generation);
    assert!(session.engine().pool().is_idle() && session.is_idle());
    let options = GenerateOptions::greedy(30);
    let mut generation = session.generate(&prompt, &options).unwrap();
    generation.next().unwrap().unwrap();
    options.cancel.cancel();
    let rest = generation.text().unwrap();
    assert!(rest.len() < 4, "{rest}");
    assert_eq!(generation.finish_reason(), Some(FinishReason::Cancelled));
}

#[test]
fn errors_come_out_of_the_iterator_and_the_session_goes_on() {
    let mut session = session(1);
    let prompt = endless(30);
    session.engine_mut().stepper_mut().fail_at = Some(4);
    let results: Vec<_> = session.generate(&prompt, &GenerateOptions::greedy(30)).unwrap().collect();
    assert!(matches!(results.last(), Some(Err(RuntimeError::Submit { .. }))), "{results:?}");
    assert_eq!(results.iter().filter(|r| r.is_err()).count(), 1);
    let text = session.generate(&prompt, &GenerateOptions::greedy(30)).unwrap().text().unwrap();
    assert_eq!(text, expected(&prompt, 30).1);
    assert!(matches!(session.generate("", &GenerateOptions::default()), Err(RuntimeError::Refused(_))));
}

#[test]
fn several_answers_grow_side_by_side() {
    let mut session = session(2);
    let prompts = ["first", "second", "third"];
    let options = GenerateOptions::greedy(20);
    let mut texts: HashMap<RequestId, String> = HashMap::new();
    let ids: Vec<RequestId> = prompts[..2]
        .iter()
        .map(|p| {
            let prompt = session.tokenizer().encode(p, true, false).unwrap();
            session.submit(&prompt, &options).unwrap()
        })
        .collect();
    // A generation in between keeps the others' events for them.
    let third = session.generate(prompts[2], &options).unwrap().text().unwrap();
    assert_eq!(third, expected(prompts[2], 20).1);
    while !session.is_idle() {
        for (request, progress) in session.step() {
            if let Progress::Text(text) = progress {
                texts.entry(request).or_default().push_str(&text);
            }
        }
    }
    for (id, prompt) in ids.iter().zip(prompts) {
        assert_eq!(texts.remove(id).unwrap_or_default(), expected(prompt, 20).1);
    }
}

#[test]
fn models_that_keep_only_recurrent_states_answer_too() {
    let engine = Engine::new(Fake::new(recurrent_plan(256, 1, 16, false))).unwrap();
    let mut session = Session::new(engine, tokenizer());
    let prompt = endless(20);
    let options = GenerateOptions::greedy(20);
    for _ in 0..2 {
        // Given up in the middle, and the slot taken again.
        session.generate(&prompt, &options).unwrap().next().unwrap().unwrap();
        assert!(session.is_idle() && session.engine().pool().is_idle());
        let text = session.generate(&prompt, &options).unwrap().text().unwrap();
        assert_eq!(text, expected(&prompt, 20).1);
    }
}

#[test]
fn a_text_that_cannot_fit_is_not_tokenized() {
    let engine = Engine::new(Fake::new(recurrent_plan(256, 1, 16, false))).unwrap();
    let mut session = Session::new(engine, tokenizer());
    let long = "a".repeat((1 << 20) + 1);
    let refused = session.generate(&long, &GenerateOptions::greedy(1)).err().unwrap();
    let expected = Refused::Text { most: 1 << 20, context: 256 };
    assert!(matches!(&refused, RuntimeError::Refused(why) if *why == expected), "{refused}");
}

#[test]
fn what_can_never_run_is_known_before_anything_is_loaded() {
    let (tokenizer, plan) = (tokenizer(), plan(256, 1, 16, 1));
    let ask = |ids: &[u32], options: &GenerateOptions| options.request(ids, &tokenizer, &plan);
    let greedy = GenerateOptions::greedy;
    assert_eq!(ask(&[1; 10], &GenerateOptions::default()).unwrap().max_new, 246);
    assert_eq!(ask(&[], &greedy(1)).unwrap_err(), Refused::EmptyPrompt);
    assert_eq!(ask(&[1], &greedy(0)).unwrap_err(), Refused::NothingToDo);
    let unknown = Refused::UnknownToken { position: 1, id: VOCAB, vocab: VOCAB };
    assert_eq!(ask(&[0, VOCAB], &greedy(1)).unwrap_err(), unknown);
    let long = Refused::TooLong { prompt: 250, max_new: 7, context: 256 };
    assert_eq!(ask(&[1; 250], &greedy(7)).unwrap_err(), long);
    let full = Refused::TooLong { prompt: 256, max_new: 1, context: 256 };
    assert_eq!(ask(&[1; 256], &GenerateOptions::default()).unwrap_err(), full);
    let stop = GenerateOptions { stop: vec!["x".into(), String::new()], ..greedy(1) };
    assert!(matches!(ask(&[1], &stop), Err(Refused::Option { option: "stop", .. })));
    let mut hot = greedy(1);
    hot.sampler.temperature = f32::NAN;
    assert!(matches!(ask(&[1], &hot), Err(Refused::Option { option: "temperature", .. })));
}
