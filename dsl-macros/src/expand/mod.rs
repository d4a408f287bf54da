//! What the attributes expand to.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Block, ItemFn, Result, parse_quote};

use crate::attr::{self, Args};
use crate::{rewrite, valid};

pub mod control;
mod glue;

use control::Control;

/// `#[tile_fn]`.
pub fn tile_fn(args: TokenStream, item: ItemFn) -> TokenStream {
    let staged = (|| {
        let args = attr::tile_fn(args)?;
        valid::tile_fn(&item.sig)?;
        staged_body(&args, &item)
    })();
    match staged {
        Ok(block) => {
            let ItemFn { attrs, vis, sig, .. } = &item;
            // What is in parentheses may stand as an argument now; rustc's advice to remove them would be about text that nobody sees.
            quote!(#(#attrs)* #[allow(unused_parens, unused_braces)] #vis #sig #block)
        }
        Err(errors) => with_errors(errors, &item),
    }
}

/// `#[kernel]`.
pub fn kernel(args: TokenStream, mut item: ItemFn) -> TokenStream {
    let parameters = match valid::kernel(&item.sig) {
        Ok(parameters) => parameters,
        Err(errors) => return with_errors(errors, &item),
    };
    let (args, mut errors) = match attr::kernel(args) {
        Ok(args) => (args, None),
        Err(error) => (Args::default(), Some(error)),
    };
    let block = staged_body(&args, &item).unwrap_or_else(|found| {
        match &mut errors {
            Some(all) => all.combine(found),
            none => *none = Some(found),
        }
        absent_body()
    });
    if errors.is_some() {
        item.attrs.push(parse_quote!(#[allow(unused)]));
    }
    let glue = glue::expand(&args, &item, &parameters, &block);
    let errors = errors.map(syn::Error::into_compile_error);
    quote!(#errors #glue)
}

/// The function's body, rewritten.
fn staged_body(args: &Args, item: &ItemFn) -> Result<Block> {
    let mut block = (*item.block).clone();
    rewrite::body(&Control::new(&args.krate), &item.sig.inputs, &mut block)?;
    Ok(block)
}

fn absent_body() -> Block {
    parse_quote!({ ::core::unreachable!() })
}

/// The errors, and a function of the same signature, so that its callers do not get errors of their own.
fn with_errors(errors: syn::Error, item: &ItemFn) -> TokenStream {
    let errors = errors.into_compile_error();
    let ItemFn { attrs, vis, sig, .. } = item;
    let block = absent_body();
    quote!(#errors #(#attrs)* #[allow(unused, clippy::all)] #vis #sig #block)
}
