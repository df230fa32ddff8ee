//! `--requests N`: many requests of random lengths, some of which begin alike, as a service has them. What is asked of
//! allocators and caches shows here, and not in one conversation.

use super::Args;
use crate::failure::Failure;
use plimsoll::runtime::rng::Rng;
use plimsoll::runtime::{Request, RequestId, RuntimeError, What};
use plimsoll::{Engine, Runtime};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// The seed unless somebody says another.
pub const SEED: u64 = 20_261_130;

/// What one request is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    pub prompt: Vec<u32>,
    pub new: u32,
}

/// From 1 to `most`.
fn up_to(rng: &mut Rng, most: u32) -> u32 {
    let most = u64::from(most.max(1));
    u32::try_from(rng.next_u64() % most).unwrap_or(0).saturating_add(1)
}

/// The requests of a seed. Three of four begin with one of the shared beginnings, of which there is one for every four
/// requests and each of which is half of the longest prompt; what is a request's own is up to the other half, answers up
/// to `new`. The same numbers make the same requests everywhere.
pub fn workload(seed: u64, requests: u32, longest: u32, new: u32, vocab: u32) -> Vec<Wish> {
    let mut rng = Rng::new(seed);
    let vocab = vocab.max(1);
    let ids = |rng: &mut Rng, count: u32| -> Vec<u32> {
        (0..count).map(|_| u32::try_from(rng.next_u64() % u64::from(vocab)).unwrap_or(0)).collect()
    };
    let half = longest / 2;
    let beginnings: Vec<Vec<u32>> = (0..requests.div_ceil(4)).map(|_| ids(&mut rng, half)).collect();
    let wish = |_| {
        let shares = !rng.next_u64().is_multiple_of(4);
        let which = rng.next_u64() % (beginnings.len().max(1) as u64);
        let own = up_to(&mut rng, longest - half);
        let beginning = beginnings.get(usize::try_from(which).unwrap_or(0)).filter(|_| shares);
        let mut prompt = beginning.cloned().unwrap_or_default();
        prompt.extend(ids(&mut rng, own));
        Wish { prompt, new: up_to(&mut rng, new) }
    };
    (0..requests).map(wish).collect()
}

/// Seconds of one pass over a workload.
pub struct Passed {
    pub seconds: f64,
    /// From the submission of each request to its first token.
    pub first_tokens: Vec<f64>,
}

/// Runs all of them from an empty cache, as many at a time as there are slots: a request is submitted when another has
/// ended, so that what it waits for is not a queue of this program's making.
pub fn pass(engine: &mut Engine<Runtime>, wishes: &[Wish]) -> Result<Passed, Failure> {
    engine.trim();
    let slots = engine.plan().geometry.slots.max(1) as usize;
    let mut ahead = wishes.iter();
    let mut submitted: HashMap<RequestId, Instant> = HashMap::new();
    let mut first_tokens = Vec::with_capacity(wishes.len());
    let mut inside = 0_usize;
    let start = Instant::now();
    loop {
        while inside < slots {
            let Some(wish) = ahead.next() else { break };
            let at = Instant::now();
            let request = Request { prompt: wish.prompt.clone(), max_new: wish.new, ..Default::default() };
            submitted.insert(engine.submit(request)?, at);
            inside += 1;
        }
        if engine.is_idle() {
            break;
        }
        for event in engine.step() {
            match event.what {
                What::Token { .. } => {
                    // Only the first finds its request.
                    first_tokens
                        .extend(submitted.remove(&event.request).map(|at| at.elapsed().as_secs_f64()));
                }
                What::Failed(error) => {
                    return Err(Arc::try_unwrap(error).unwrap_or_else(RuntimeError::Step).into());
                }
                What::Done(_) => inside = inside.saturating_sub(1),
                What::Prefill { .. } => {}
            }
        }
    }
    Ok(Passed { seconds: start.elapsed().as_secs_f64(), first_tokens })
}

/// The workload that flags ask for, if they ask for one.
pub fn asked(args: &Args, vocab: u32) -> Option<Vec<Wish>> {
    let requests = args.requests?;
    Some(workload(args.seed, requests, args.prompt_tokens, args.new_tokens, vocab))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_workload() {
        let wishes = workload(SEED, 40, 100, 8, 64);
        assert_eq!(wishes, workload(SEED, 40, 100, 8, 64));
        assert_ne!(wishes, workload(SEED + 1, 40, 100, 8, 64));
        assert_eq!(wishes.len(), 40);
        assert!(wishes.iter().all(|w| (1..=100).contains(&w.prompt.len()) && (1..=8).contains(&w.new)));
        assert!(wishes.iter().flat_map(|w| &w.prompt).all(|&id| id < 64));
        let alike = |wish: &&Wish| {
            let begins = |other: &&Wish| other.prompt.len() > 50 && other.prompt[..50] == wish.prompt[..50];
            wish.prompt.len() > 50 && wishes.iter().filter(begins).count() > 1
        };
        let shared = wishes.iter().filter(alike).count();
        assert!((20..40).contains(&shared), "{shared} of 40 begin as another does");
        assert!(wishes.iter().any(|w| w.prompt.len() < 50), "and some do not");
    }

    #[test]
    fn the_smallest_is_one() {
        assert!(workload(0, 1, 1, 1, 0).iter().all(|w| w.prompt == [0] && w.new == 1));
    }
}
