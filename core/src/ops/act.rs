//! Activation functions.

use crate::math;

/// An activation function of one variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Act {
    /// `x / (1 + exp(-x))`
    Silu,
    /// `0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`
    GeluTanh,
}

impl Act {
    /// The value at `x`.
    #[inline(always)]
    pub fn eval(self, x: f32) -> f32 {
        match self {
            Act::Silu => math::silu(x),
            Act::GeluTanh => math::gelu_tanh(x),
        }
    }
}
