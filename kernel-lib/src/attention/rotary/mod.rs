//! Rotary position embedding where it costs no pass over memory: queries are turned as decode loads them, keys as they are appended to a cache.
//!
//! One formula serves both pairings: an element is its own value times the cosine, plus its partner's times the sine, which has a sign. Partners are loaded from memory a second time, next to
//! what was just read; in registers they may be another thread's. What is turned is rounded to the tensors' type, so that the result is, bit by bit, what
//! [`rotary()`](fn@crate::rotary()) would have stored.

#[cfg(test)]
mod tests;

use tegula::prelude::*;
use tegula::runtime::TensorView;

use crate::Error;
use crate::check::Check;
use crate::rotary::Pairing;

/// How queries and keys turn with their positions: see [`rotary`](mod@crate::rotary), which says how accurate that is.
#[derive(Clone, Copy, Debug)]
pub struct Rotary<'a> {
    /// `[pairs]`, radians a position: pair i at position p turns by p · `inv_freq`\[i\]. Dimensions beyond the first 2 · pairs of a head stay as they are.
    pub inv_freq: TensorView<'a, f32>,
    /// Which dimensions are a pair.
    pub pairing: Pairing,
}

impl<'a> Rotary<'a> {
    /// With these frequencies ([`inverse_frequencies`](crate::rotary::inverse_frequencies) has the usual ones).
    pub fn new(inv_freq: impl Into<TensorView<'a, f32>>, pairing: Pairing) -> Rotary<'a> {
        Rotary { inv_freq: inv_freq.into(), pairing }
    }

    pub(super) fn check(&self, check: &Check, head_dim: usize) -> Result<(), Error> {
        let [pairs] = check.rank("inv_freq", self.inv_freq.shape(), ["pairs"])?;
        if pairs == 0 || 2 * pairs > head_dim {
            let problem =
                format!("{pairs} frequencies turn {} dimensions, but heads have {head_dim}", 2 * pairs);
            return Err(check.refuse("inv_freq", problem, "pass one for each pair of dimensions that turns"));
        }
        Ok(())
    }
}

/// `[tokens, heads, dim]` of `x`, which is `[b, s, h, d]`, from batch, token and head `at` on: turned, the first token by `position`, each further one by one more.
#[track_caller]
pub(super) fn turned<T: Float>(
    x: View<T, 4>,
    at: [Scalar<i32>; 3],
    position: Scalar<i32>,
    inv_freq: View<f32, 1>,
    pairing: Pairing,
    [tokens, heads, dim]: [usize; 3],
) -> Tile<T> {
    let [batch, token, head] = at;
    let column = arange(0, dim);
    let pairs = inv_freq.dim(0).cast::<i32>();
    let turns = column.lt(pairs * 2);
    let (pair, partner, is_first): (Tile<i32>, Tile<i32>, Tile<bool>) = match pairing {
        Pairing::Half => {
            let is_first = column.lt(pairs);
            let before = column - pairs;
            (select(is_first, column, before), select(is_first, column + pairs, before), is_first)
        }
        Pairing::Interleaved => {
            let is_first = (column % 2).eq_(0);
            (column / 2, select(is_first, column + 1, column - 1), is_first)
        }
    };
    let frequency = inv_freq.base_ptr() + pair.cast::<i64>() * inv_freq.stride(0);
    let frequency = frequency.load_masked(turns, zeros::<f32>([dim]));
    // Angles of all heads of a token: [tokens, 1, dim]. What does not turn has an angle of 0.
    let token_number = arange(0, tokens);
    let angle = (position + token_number).cast::<f32>().expand(1) * frequency.expand(0);
    let (cos, sin) = (angle.cos().expand(1), angle.sin());
    let sin = select(is_first.expand(0), -sin, sin).expand(1);

    let own =
        x.load([batch, token, head, constant(0)], [1, tokens, heads, dim]).reshape([tokens, heads, dim]);
    let (token, head) = (token + token_number, head + arange(0, heads));
    let row = (token.cast::<i64>() * x.stride(1)).expand(1) + (head.cast::<i64>() * x.stride(2)).expand(0);
    let inside = token.cast::<i64>().lt(x.dim(1)).expand(1) & head.cast::<i64>().lt(x.dim(2)).expand(0);
    let inside = inside.expand(2) & turns.expand(0).expand(0);
    let offset = row.expand(2) + (partner.cast::<i64>() * x.stride(3)).expand(0).expand(0);
    let start = x.base_ptr() + batch.cast::<i64>() * x.stride(0);
    let other = (start + offset).load_masked(inside, zeros::<T>([tokens, heads, dim]));
    (own.cast::<f32>() * cos + other.cast::<f32>() * sin).cast::<T>()
}
