//! Which layers slide in llama.cpp: its own table, by family. Where a family is not in it every layer keeps every token,
//! whatever the configuration says of windows.

use plimsoll_models::Model;
use plimsoll_models::model::State;

/// The layers that keep a window.
pub(super) struct Slides {
    /// By state; the window where that layer slides.
    windows: Vec<Option<u32>>,
    /// Why, in a sentence; nothing for models without windows.
    pub rule: Option<String>,
}

impl Slides {
    /// The window of a state.
    pub fn window(&self, state: usize) -> Option<u32> {
        self.windows.get(state).copied().flatten()
    }

    /// Whether any layer keeps a window.
    pub fn any(&self) -> bool {
        self.windows.iter().any(Option::is_some)
    }
}

/// What the table says of a family.
enum Rule {
    /// The checkpoint's own list of layers.
    Listed,
    /// All but the last of every so many layers; all but the first with `true`.
    Every(usize, bool),
    /// Every layer with attention.
    All,
    /// None.
    Never,
}

fn rule(family: &str, layers: u32) -> Rule {
    match family {
        "gemma4" => Rule::Listed,
        "gemma2" | "gpt_oss" => Rule::Every(2, false),
        "gemma3" => Rule::Every(6, false),
        "gemma3n" => Rule::Every(5, false),
        "afmoe" | "cohere2" | "llama4" | "olmo2" => Rule::Every(4, false),
        "exaone4" if layers == 64 => Rule::Every(4, false),
        "cohere2_moe" | "smallthinker" => Rule::Every(4, true),
        "plamo3" => Rule::Every(8, false),
        "lfm2" | "lfm2_moe" => Rule::All,
        _ => Rule::Never,
    }
}

/// Applies the table to a model's states. The families that slide keep something on every layer, up to those that share an
/// earlier layer's cache, so a state's index is its layer's.
pub(super) fn of(model: &Model) -> Slides {
    let window = model.states.iter().find_map(|state| match state {
        State::KvSliding { window, .. } => Some(*window),
        _ => None,
    });
    let Some(any) = window else { return Slides { windows: vec![None; model.states.len()], rule: None } };
    let family = model.architecture.to_ascii_lowercase().replace('-', "_");
    let family = family.trim_end_matches("_text");
    let rule = rule(family, model.layers);
    let windows = model.states.iter().enumerate().map(|(layer, state)| {
        let own = match state {
            State::KvSliding { window, .. } => Some(*window),
            State::KvFull { .. } => None,
            State::KvLatent { .. } | State::Recurrent { .. } => return None,
        };
        match rule {
            Rule::Listed => own,
            Rule::All => Some(own.unwrap_or(any)),
            Rule::Every(period, first) => {
                let at = layer % period;
                let slides = if first { at != 0 } else { at + 1 < period };
                slides.then(|| own.unwrap_or(any))
            }
            Rule::Never => None,
        }
    });
    let windows: Vec<Option<u32>> = windows.collect();
    let said = match rule {
        Rule::Listed => "sliding layers as the checkpoint lists them".to_owned(),
        Rule::All => "every attention layer slides in this family".to_owned(),
        Rule::Every(period, first) => format!(
            "{} of every {period} layers slide in this family ({} keeps every token)",
            period - 1,
            if first { "the first" } else { "the last" }
        ),
        Rule::Never => {
            format!("the window of {any} is ignored: every layer of this family keeps every token")
        }
    };
    Slides { windows, rule: Some(said) }
}
