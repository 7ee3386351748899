//! The rows of one step: what a batch of sequences asks the model to compute. A chunk of a prompt and a decoded token
//! are rows of the same type, so a step may hold both, for any number of sequences.

use crate::ids::{SeqId, TokenId};

/// What a row feeds into the first layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// A token, looked up in the embedding matrix.
    Token(TokenId),
    /// Row of the step's embedding buffer (images, audio), `[n_embedding, d_model]` f32.
    Embedding(u32),
}

/// What the caller wants to see of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// Only its effect on the KV cache.
    Nothing,
    /// The logits of the next token.
    Logits,
    /// The last hidden state after the final norm.
    Hidden,
    /// The hidden state added to the sequence's pool.
    Pooled,
}

/// One position of one sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// Whose position it is.
    pub seq: SeqId,
    /// Position in the sequence; all four are equal for text, models with 2-D or 3-D positions use them apart.
    pub pos: [u32; 4],
    /// What is fed in.
    pub input: Input,
    /// What is asked for.
    pub want: Want,
    /// Adapter applied to the row, if any.
    pub adapter: Option<u32>,
}

impl Row {
    /// A text row.
    pub fn token(seq: SeqId, pos: u32, token: TokenId, want: Want) -> Row {
        Row { seq, pos: [pos; 4], input: Input::Token(token), want, adapter: None }
    }
}
