//! Any vocabulary and any text: a tokenizer is built or refused, and what it makes of the text holds its promises.
//!
//! The input is a file of its own where it is GGUF, or else a recipe: a byte for model, flags and splits, then tokens,
//! merges, a normaliser table and a text, each with its length in front.
#![no_main]

use libfuzzer_sys::fuzz_target;
use selvedge_core::ids::TokenId;
use selvedge_core::tokenizer::{Detokenizer, EncodeOptions, ParseSpecial, Span, TokenType, Tokenizer};
use selvedge_gguf::{Gguf, Writer};

const MODELS: [&str; 4] = ["llama", "gpt2", "bert", "t5"];
const SPLITS: [&str; 12] = [
    "default",
    "gpt-2",
    "starcoder",
    "falcon",
    "llama-bpe",
    "qwen2",
    "qwen35",
    "deepseek-llm",
    "deepseek-coder",
    "deepseek-v3",
    "tekken",
    "gpt-4o",
];

/// Takes pieces off the front of the input.
struct Recipe<'a>(&'a [u8]);

impl<'a> Recipe<'a> {
    fn byte(&mut self) -> u8 {
        let (byte, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *byte
    }

    fn bytes(&mut self) -> &'a [u8] {
        let n = usize::from(self.byte()).min(self.0.len());
        let (head, rest) = self.0.split_at(n);
        self.0 = rest;
        head
    }
}

/// A vocabulary file made from a recipe.
fn cook(recipe: &mut Recipe<'_>) -> Vec<u8> {
    let mut writer = Writer::new();
    let model = recipe.byte();
    let flags = recipe.byte();
    writer.set("tokenizer.ggml.model", MODELS[usize::from(model) % MODELS.len()]);
    if flags & 1 == 0 {
        writer.set("tokenizer.ggml.pre", SPLITS[usize::from(recipe.byte()) % SPLITS.len()]);
    }
    let n_token = usize::from(recipe.byte()) + 1;
    let mut tokens: Vec<Vec<u8>> = (0..n_token).map(|_| recipe.bytes().to_vec()).collect();
    // The common characters, so that something can be spelled.
    tokens.extend((b'!'..=b'~').map(|b| vec![b]));
    tokens.push("▁".into());
    let types: Vec<i32> = tokens.iter().map(|_| i32::from(recipe.byte() % 8)).collect();
    let scores: Vec<f32> = tokens.iter().map(|_| f32::from_bits(u32::from(recipe.byte()) << 23 | 1 << 31)).collect();
    let n_merge = usize::from(recipe.byte());
    let merges: Vec<Vec<u8>> = (0..n_merge).map(|_| recipe.bytes().to_vec()).collect();
    writer.set("tokenizer.ggml.tokens", tokens);
    if flags & 2 == 0 {
        writer.set("tokenizer.ggml.token_type", types);
    }
    if flags & 4 == 0 {
        writer.set("tokenizer.ggml.scores", scores);
    }
    writer.set("tokenizer.ggml.merges", merges);
    writer.set("tokenizer.ggml.add_space_prefix", flags & 8 == 0);
    writer.set("tokenizer.ggml.remove_extra_whitespaces", flags & 16 == 0);
    if flags & 32 == 0 {
        let mut map = recipe.bytes().to_vec();
        map.extend_from_slice(recipe.bytes());
        writer.set("tokenizer.ggml.precompiled_charsmap", map);
    }
    for key in ["bos", "eos", "unknown", "seperator"] {
        if recipe.byte() & 1 == 0 {
            writer.set(&format!("tokenizer.ggml.{key}_token_id"), u32::from(recipe.byte()));
        }
    }
    writer.to_bytes().unwrap_or_default()
}

fuzz_target!(|bytes: &[u8]| {
    let mut recipe = Recipe(bytes);
    let file = if bytes.starts_with(b"GGUF") { bytes.to_vec() } else { cook(&mut recipe) };
    let Ok(gguf) = Gguf::parse(&file) else { return };
    let tokenizer = match Tokenizer::from_metadata(&gguf.metadata) {
        Ok(tokenizer) => tokenizer,
        Err(error) => {
            assert!(!error.to_string().contains('\n'));
            return;
        }
    };
    let planned = Tokenizer::planned_bytes(&gguf.metadata).expect("what can be built can be planned");
    let held = tokenizer.heap_bytes();
    assert!(held.abs_diff(planned) <= held / 50 + 4096, "planned {planned}, held {held}");
    tokenizer.warnings().iter().for_each(|warning| assert!(!warning.to_string().is_empty()));

    let text = String::from_utf8_lossy(recipe.0);
    let n_vocab = tokenizer.n_vocab();
    for parse_special in [ParseSpecial::UserDefined, ParseSpecial::All] {
        let trusted = parse_special == ParseSpecial::All;
        let options = EncodeOptions { add_special: false, parse_special };
        let ids = tokenizer.encode(&text, options).expect("short text");
        assert!(ids.iter().all(|id| (id.0 as usize) < n_vocab));
        let unk = tokenizer.special().unk;
        let forged = |id: &TokenId| tokenizer.token_type(*id) == TokenType::Control && Some(*id) != unk;
        assert!(trusted || !ids.iter().any(forged));

        let cut = text.char_indices().nth(text.len() / 3).map_or(0, |(i, _)| i);
        let spans = [Span { text: &text[..cut], trusted }, Span { text: &text[cut..], trusted }];
        assert_eq!(tokenizer.encode_spans(&spans, false).expect("short text"), ids);

        let framed = tokenizer.encode(&text, EncodeOptions { add_special: true, parse_special }).expect("short text");
        assert!(framed.len() <= ids.len() + 2 && framed.iter().all(|id| (id.0 as usize) < n_vocab));

        let whole = tokenizer.decode(&ids, true);
        let mut streamed = String::new();
        let mut detokenizer = Detokenizer::new().render_special(true);
        for &id in &ids {
            detokenizer.push(&tokenizer, id, &mut streamed);
        }
        detokenizer.finish(&mut streamed);
        assert_eq!(whole, streamed);
    }
});
