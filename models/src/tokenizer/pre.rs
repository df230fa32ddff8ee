//! The pre-tokenizers that GGUF files name, as the patterns of the models' own published tokenizer.json.

use crate::error::{ModelError, quoted};
use tokenizers::normalizers::{NFC, NormalizerWrapper};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::normalizer::SplitDelimiterBehavior;

/// How text is cut before byte-level BPE merges inside the pieces.
pub(super) struct PreTokenizer {
    /// Splits applied one after another, each to the pieces of the one before.
    patterns: &'static [&'static str],
    /// Unicode composition first (the family's published tokenizer.json does it).
    nfc: bool,
    /// A piece that is a whole token needs no merges.
    pub ignore_merges: bool,
    /// Whether BOS is added when the file does not say.
    pub adds_bos: bool,
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
/// Cased letters as that family lists them: escapes, because some of them normalise to others.
const DEEPSEEK_LETTERS: &str = concat!(
    r"\s?[",
    r"A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}",
    r"\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}",
    r"\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}",
    r"\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}",
    r"\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}",
    r"\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}",
    r"\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}",
    r"\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}",
    r"\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}",
    r"\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}",
    r"\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}",
    r"\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}",
    r"\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}",
    r"\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}",
    r"]+"
);

/// The names that [`PreTokenizer::named`] knows, for error messages.
const KNOWN: &str = "default, gpt-2, phi-2, mpt, olmo, llama-bpe, llama3, dbrx, smaug-bpe, qwen2, deepseek-r1-qwen, \
                     qwen35, smollm, starcoder, refact, codeshell, command-r, deepseek-llm, deepseek-coder, deepseek-v3, \
                     tekken, gpt-4o, llama4";

impl PreTokenizer {
    /// The pre-tokenizer with the name of `tokenizer.ggml.pre`.
    pub(super) fn named(name: &str) -> Result<Self, ModelError> {
        let plain = |patterns| PreTokenizer { patterns, nfc: false, ignore_merges: false, adds_bos: false };
        Ok(match name {
            "default" => plain(&[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"]),
            "gpt-2" | "phi-2" | "mpt" | "olmo" | "exaone4" | "granite-docling" | "trillion" => plain(&[GPT2]),
            "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "falcon-h1" | "pixtral" | "lfm2" => {
                PreTokenizer { ignore_merges: true, adds_bos: true, ..plain(&[LLAMA3]) }
            }
            "dbrx" | "smaug-bpe" => plain(&[LLAMA3]),
            "qwen2" | "deepseek-r1-qwen" | "megrez" => PreTokenizer { nfc: true, ..plain(&[QWEN2]) },
            "qwen35" => PreTokenizer { nfc: true, ..plain(&[QWEN35]) },
            "smollm" | "starcoder" | "refact" | "codeshell" => plain(&[r"\p{N}", GPT2]),
            "command-r" => PreTokenizer { nfc: true, ..plain(&[r"\p{N}", GPT2]) },
            "deepseek-llm" => plain(&[
                r"[\r\n]",
                DEEPSEEK_LETTERS,
                r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+",
                r"\s+$",
                r"[\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+",
                r"\p{N}+",
            ]),
            "deepseek-coder" => plain(&[
                r"[\r\n]",
                r"\s?\p{L}+",
                r"\s?\p{P}+",
                r"[\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+",
                r"\p{N}",
            ]),
            "deepseek-v3" => {
                plain(&[r"\p{N}{1,3}", r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+", DEEPSEEK3])
            }
            "tekken" => PreTokenizer { ignore_merges: true, adds_bos: true, ..plain(&[TEKKEN]) },
            "gpt-4o" | "llama4" => plain(&[GPT4O]),
            other => {
                return Err(ModelError::unsupported(
                    format!("pre-tokenizer {}", quoted(other)),
                    format!("known names are {KNOWN}"),
                ));
            }
        })
    }

    /// What runs on the text before it is cut.
    pub(super) fn normalizer(&self) -> Option<NormalizerWrapper> {
        self.nfc.then_some(NormalizerWrapper::NFC(NFC))
    }

    /// The splits, then bytes as printable characters.
    pub(super) fn build(&self) -> Result<PreTokenizerWrapper, ModelError> {
        let mut steps = Vec::with_capacity(self.patterns.len() + 1);
        for pattern in self.patterns {
            let split = Split::new(
                SplitPattern::Regex((*pattern).to_owned()),
                SplitDelimiterBehavior::Isolated,
                false,
            )
            .map_err(|e| ModelError::tokenizer("pre-tokenizer", "a valid pattern", e.to_string()))?;
            steps.push(PreTokenizerWrapper::Split(split));
        }
        steps.push(PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, true, false)));
        Ok(PreTokenizerWrapper::Sequence(Sequence::new(steps)))
    }
}
