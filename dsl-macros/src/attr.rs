//! The arguments of the attributes.

use proc_macro2::TokenStream;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{Attribute, Expr, Ident, Path, Result, Token, parse_quote};

/// The names of hints: fields of the IR's `KernelHints`. Those that are optional there are marked.
const HINTS: &[(&str, bool)] = &[
    ("num_warps", false),
    ("num_stages", false),
    ("max_registers", true),
    ("min_ctas", true),
    ("warp_specialize", false),
    ("cluster", false),
];

/// A hint: `num_warps = 8`.
pub struct Hint {
    /// The field of `KernelHints`.
    pub name: Ident,
    /// Is the field an `Option`?
    pub optional: bool,
    /// Its value, of type `u32`.
    pub value: Expr,
}

/// What stands between the parentheses of `#[kernel(…)]` and `#[tile_fn(…)]`.
pub struct Args {
    /// The hints.
    pub hints: Vec<Hint>,
    /// The module that generated code refers to: `::tegula::__private`, unless `crate = path` says otherwise.
    pub krate: Path,
}

impl Default for Args {
    fn default() -> Args {
        Args { hints: Vec::new(), krate: parse_quote!(::tegula::__private) }
    }
}

enum Arg {
    Hint(Hint),
    Crate(Path),
}

impl Parse for Arg {
    fn parse(input: ParseStream<'_>) -> Result<Arg> {
        if input.peek(Token![crate]) {
            input.parse::<Token![crate]>()?;
            input.parse::<Token![=]>()?;
            return Ok(Arg::Crate(input.parse()?));
        }
        let name: Ident = input.parse()?;
        let Some(&(_, optional)) = HINTS.iter().find(|(known, _)| name == known) else {
            let known: Vec<String> = HINTS.iter().map(|(known, _)| format!("`{known}`")).collect();
            return Err(syn::Error::new(
                name.span(),
                format!("unknown hint `{name}`; there are {}", known.join(", ")),
            ));
        };
        input.parse::<Token![=]>()?;
        Ok(Arg::Hint(Hint { name, optional, value: input.parse()? }))
    }
}

/// Parses the arguments of `#[kernel]`.
pub fn kernel(tokens: TokenStream) -> Result<Args> {
    let mut args = Args::default();
    for arg in syn::parse::Parser::parse2(Punctuated::<Arg, Token![,]>::parse_terminated, tokens)? {
        match arg {
            Arg::Crate(path) => args.krate = path,
            Arg::Hint(hint) if args.hints.iter().any(|h| h.name == hint.name) => {
                return Err(syn::Error::new(hint.name.span(), format!("`{}` is given twice", hint.name)));
            }
            Arg::Hint(hint) => args.hints.push(hint),
        }
    }
    Ok(args)
}

/// Parses the arguments of `#[tile_fn]`, which has no hints.
pub fn tile_fn(tokens: TokenStream) -> Result<Args> {
    let args = kernel(tokens)?;
    match args.hints.first() {
        Some(hint) => {
            Err(syn::Error::new(hint.name.span(), "hints belong to the kernel, not to a helper function"))
        }
        None => Ok(args),
    }
}

/// Removes `#[host]` from the attributes of a statement; was it there?
pub fn take_host(attrs: &mut Vec<Attribute>) -> bool {
    let before = attrs.len();
    attrs.retain(|a| !a.path().is_ident("host"));
    attrs.len() != before
}
