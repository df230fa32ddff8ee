//! The model that is always there: `demo-model/plimsoll-demo`, built into the library.

use crate::{Error, Opened};
use plimsoll_models::{Checkpoint, ModelError, Registry};

/// What it is called.
pub const DEMO: &str = "plimsoll-demo";

macro_rules! file {
    ($name:literal) => {
        include_bytes!(concat!("../demo-model/plimsoll-demo/", $name)).as_slice()
    };
}

const CONFIG: &[u8] = file!("config.json");
const WEIGHTS: &[u8] = file!("model.safetensors");
const BESIDE: [(&str, &[u8]); 3] = [
    ("tokenizer.json", file!("tokenizer.json")),
    ("tokenizer_config.json", file!("tokenizer_config.json")),
    ("generation_config.json", file!("generation_config.json")),
];

/// The checkpoint of the bundled model, a small trained `nemotron_h` in bf16, with its tokenizer, its chat template
/// and its settings of generation.
///
/// ```
/// let checkpoint = plimsoll::demo_checkpoint()?;
/// assert_eq!(checkpoint.name(), "plimsoll-demo");
/// let tokenizer = plimsoll::Tokenizer::from_checkpoint(&checkpoint)?.expect("a tokenizer");
/// assert_eq!(tokenizer.encode("", true, false)?, [1]); // BOS
/// # Ok::<(), plimsoll::Error>(())
/// ```
///
/// # Errors
/// None that a build which passed its tests can have.
pub fn demo_checkpoint() -> Result<Checkpoint, ModelError> {
    let weights = vec![("model.safetensors".to_owned(), WEIGHTS.to_vec())];
    let beside = BESIDE.map(|(name, bytes)| (name.to_owned(), bytes.to_vec())).to_vec();
    Checkpoint::from_safetensors_bytes(None, weights, Some(CONFIG), DEMO)?.with_side_files(beside)
}

/// The bundled model, opened. It writes nautical English, and knows nothing else.
///
/// # Errors
/// As [`demo_checkpoint`].
pub fn demo() -> Result<Opened, Error> {
    Opened::new(demo_checkpoint()?, &Registry::standard())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use plimsoll_models::{Tokenizer, chat::ChatTemplate};

    #[test]
    fn the_bundled_files_are_those_of_the_folder() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("demo-model").join(DEMO);
        let (bundled, there) = (demo_checkpoint().unwrap(), Checkpoint::open(&folder).unwrap());
        assert_eq!(bundled.name(), there.name());
        assert_eq!(bundled.config(), there.config());
        assert_eq!(bundled.generation_config(), there.generation_config());
        assert!(bundled.generation_config().is_some());
        let tensors = |c: &Checkpoint| {
            c.tensors().map(|t| (t.name.clone(), c.data(t).unwrap().to_vec())).collect::<Vec<_>>()
        };
        assert!(tensors(&bundled) == tensors(&there) && bundled.tensors().len() > 100);
        let tokenizer = |c: &Checkpoint| Tokenizer::from_checkpoint(c).unwrap().unwrap();
        let (a, b) = (tokenizer(&bundled), tokenizer(&there));
        let text = "The captain of the Kestrel is Lars Red.";
        assert_eq!(a.encode(text, true, false).unwrap(), b.encode(text, true, false).unwrap());
        assert_eq!((a.bos(), a.eos(), a.end_of_generation()), (b.bos(), b.eos(), b.end_of_generation()));
        let template =
            |c: &Checkpoint| ChatTemplate::from_checkpoint(c).unwrap().unwrap().source().to_owned();
        assert_eq!(template(&bundled), template(&there));
    }

    /// A checkpoint in memory has what it was given, and nothing that lies in the working directory.
    #[test]
    fn nothing_is_beside_a_checkpoint_in_memory() {
        let weights = vec![("model.safetensors".to_owned(), WEIGHTS.to_vec())];
        let bare = Checkpoint::from_safetensors_bytes(None, weights, Some(CONFIG), "Cargo.toml").unwrap();
        assert!(Tokenizer::from_checkpoint(&bare).unwrap().is_none());
        assert!(ChatTemplate::from_checkpoint(&bare).unwrap().is_none());
    }
}
