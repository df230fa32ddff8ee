//! Which layers slide in llama.cpp and in mlx-lm: their own tables, by family. Where a family is not in a table every layer
//! keeps every token, whatever the configuration says of windows.
//!
//! Sources: `src/llama-model.cpp` of ggml-org/llama.cpp; the `make_cache` of each file in `mlx_lm/models`, mlx-lm 0.32.2.

use plimsoll_models::Model;
use plimsoll_models::model::State;

/// The release of mlx-lm that the table is of.
pub(super) const MLX_LM: &str = "mlx-lm 0.32.2";

/// The layers that keep a window.
#[derive(Debug)]
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

/// What a table says of a family.
#[derive(Clone, Copy, Debug)]
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

fn llama_cpp(family: &str, layers: u32) -> Rule {
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

fn mlx(family: &str, model: &Model) -> Rule {
    let stated = &model.extras.stated;
    let pattern = |otherwise: usize| stated.sliding_window_pattern.map_or(otherwise, |n| n as usize);
    match family {
        // By the configuration's list, or one that the file makes of it.
        "afmoe" | "baichuan_m1" | "exaone4" | "exaone_moe" | "gear" | "gemma3n" | "gemma4" | "gpt_oss"
        | "laguna" | "mellum" | "mimo_v2_flash" | "muse_glimmer" | "muse_spark" | "olmo3" | "plamo3"
        | "spark2_5" | "step3p5" => Rule::Listed,
        // Without a list of layers these keep every token.
        "llama" | "mistral" | "ministral3" | "mistral3" | "iquestcoder" | "xverse"
            if stated.lists_windows =>
        {
            Rule::Listed
        }
        "gemma3" => Rule::Every(pattern(6), false),
        "cohere2" => Rule::Every(pattern(4), false),
        // The text model alone has a file of its own, without chunks.
        "llama4" if stated.nested => Rule::Every(4, false),
        "recurrent_gemma" => Rule::All,
        _ => Rule::Never,
    }
}

/// The family of a model, as the tables have it.
fn family(model: &Model) -> String {
    let family = model.architecture.to_ascii_lowercase().replace('-', "_");
    family.trim_end_matches("_text").to_owned()
}

/// llama.cpp's layers that slide.
pub(super) fn of_llama_cpp(model: &Model) -> Slides {
    apply(model, llama_cpp(&family(model), model.layers))
}

/// mlx-lm's layers that slide.
pub(super) fn of_mlx(model: &Model) -> Slides {
    let slides = apply(model, mlx(&family(model), model));
    Slides { rule: slides.rule.map(|rule| format!("{rule}, by {MLX_LM}")), ..slides }
}

/// Applies a table to a model's states. The families that slide keep something on every layer, up to those that share an
/// earlier layer's cache, so a state's index is its layer's.
fn apply(model: &Model, rule: Rule) -> Slides {
    let window = model.states.iter().find_map(|state| match state {
        State::KvSliding { window, .. } => Some(*window),
        _ => None,
    });
    let Some(any) = window else { return Slides { windows: vec![None; model.states.len()], rule: None } };
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
