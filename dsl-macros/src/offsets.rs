//! `x.load([row, 0], …)`: offsets into a view may mix device scalars and host integers, but an array of Rust has one element type. So an
//! array literal that says a place in a view becomes a tuple, which the language's `Offsets` takes just as well.
//!
//! This goes by the name of the method, as types are not known here. Arrays of literals only are left alone: they are of one type.

use syn::punctuated::Punctuated;
use syn::{Expr, ExprTuple, Ident, Token, token};

/// Methods and functions, and which of their arguments say a place (or extents, or strides) in a view.
const PLACES: [(&str, &[usize]); 6] = [
    ("load", &[0]),
    ("load_padded", &[0]),
    ("load_scalar", &[0]),
    ("copy_from", &[1]),
    ("store", &[0]),
    ("from_ptr", &[1, 2]),
];

/// Makes tuples of those arguments of a call that are offsets.
pub(crate) fn array_to_tuple(callee: &Ident, args: &mut Punctuated<Expr, Token![,]>) {
    let Some((_, places)) = PLACES.iter().find(|(name, _)| callee == name) else { return };
    for &index in *places {
        let Some(arg) = args.get_mut(index) else { continue };
        let Expr::Array(array) = arg else { continue };
        if array.elems.len() < 2 || array.elems.iter().all(|e| matches!(e, Expr::Lit(_))) {
            continue;
        }
        *arg = Expr::Tuple(ExprTuple {
            attrs: std::mem::take(&mut array.attrs),
            paren_token: token::Paren { span: array.bracket_token.span },
            elems: std::mem::take(&mut array.elems),
        });
    }
}
