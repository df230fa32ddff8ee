//! The type that vLLM keeps recurrent states in: its flag, else what its class of the family makes of the configuration,
//! else the type of the tails, which is the model's.
//!
//! Sources: `MambaStateDtypeCalculator` in `vllm/model_executor/layers/mamba/mamba_utils.py` and `MODELS_CONFIG_MAP` in
//! `vllm/model_executor/models/config.py` of vllm-project/vllm, where only the classes of Nemotron-H and Qwen3.5 look for a
//! type. Qwen3-Next's states are in the model's type whatever its configuration asks for.

use super::PeerError;
use plimsoll_models::Model;

/// A type of recurrent states, as the flag has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StateType {
    /// As the family and its configuration have it.
    #[default]
    Auto,
    /// Four bytes.
    Float32,
    /// Two bytes.
    Float16,
    /// Two bytes.
    Bfloat16,
}

impl StateType {
    /// Every type.
    pub const ALL: [StateType; 4] =
        [StateType::Auto, StateType::Float32, StateType::Float16, StateType::Bfloat16];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            StateType::Auto => "auto",
            StateType::Float32 => "float32",
            StateType::Float16 => "float16",
            StateType::Bfloat16 => "bfloat16",
        }
    }
}

/// What a model's states are kept in.
#[derive(Debug)]
pub(super) struct Kept {
    /// Bytes of a value.
    pub bytes: u32,
    /// Why, as the end of a sentence; nothing of a model without states.
    pub rule: String,
}

/// The type of a model's states.
///
/// # Errors
/// [`PeerError::Unsupported`] for a type that the configuration asks for and the engine does not know.
pub(super) fn of(model: &Model, asked: StateType) -> Result<Kept, PeerError> {
    if !model.states.iter().any(|state| state.recurrent().is_some_and(|shape| shape.values > 0)) {
        return Ok(Kept { bytes: 2, rule: String::new() });
    }
    let stated = &model.extras.stated;
    let family = model.architecture.as_str();
    // What the class of the family reads, and what it takes without.
    let (key, value, otherwise) = if family.starts_with("nemotron_h") {
        ("mamba_ssm_cache_dtype", stated.mamba_ssm_cache_dtype.as_deref(), "float32")
    } else if family.starts_with("qwen3_5") {
        ("mamba_ssm_dtype", stated.mamba_ssm_dtype.as_deref(), "auto")
    } else {
        ("", None, "auto")
    };
    let (name, why) = match (asked, value) {
        (StateType::Auto, Some(value)) => (value, format!("as {key} of the configuration has it")),
        (StateType::Auto, None) => (otherwise, "as this family has it".to_owned()),
        (asked, _) => (asked.name(), "as asked".to_owned()),
    };
    let (bytes, name) = match name {
        "float32" | "float" => (4, name),
        "float16" | "half" | "bfloat16" => (2, name),
        "auto" => (2, "the model's type"),
        other => {
            let other: String = other.chars().take(40).collect();
            let what = format!(
                "has no type of recurrent states {other:?}, which the configuration asks for: say which"
            );
            return Err(PeerError::Unsupported { engine: "vllm", what });
        }
    };
    let rule = format!(" and state in {bytes}: {name}, {why} (--mamba-ssm-cache-dtype for another)");
    Ok(Kept { bytes, rule })
}
