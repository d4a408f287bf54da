//! The syntax of `warp_groups! { producer(regs = 24) => { … }, consumer(regs = 240) => { … } }`.

use syn::parse::{Parse, ParseStream};
use syn::{Block, Expr, Ident, Token, parenthesized};

/// Both groups.
pub struct Groups {
    pub producer: Group,
    pub consumer: Group,
}

/// A group: how many registers a thread of it has, and what it does.
pub struct Group {
    pub registers: Option<Expr>,
    pub body: Block,
}

impl Parse for Groups {
    fn parse(input: ParseStream<'_>) -> syn::Result<Groups> {
        let producer = group(input, "producer")?;
        let consumer = group(input, "consumer")?;
        if !input.is_empty() {
            return Err(input.error("there are two groups, the producer and the consumer"));
        }
        Ok(Groups { producer, consumer })
    }
}

fn group(input: ParseStream<'_>, wanted: &str) -> syn::Result<Group> {
    let shown = format!("expected `{wanted} => {{ … }}`, or `{wanted}(regs = …) => {{ … }}`");
    if input.is_empty() {
        return Err(input.error(shown));
    }
    let name: Ident = input.parse()?;
    if name != wanted {
        return Err(syn::Error::new(name.span(), shown));
    }
    let mut registers = None;
    if input.peek(syn::token::Paren) {
        let arguments;
        parenthesized!(arguments in input);
        while !arguments.is_empty() {
            let key: Ident = arguments.parse()?;
            if key != "regs" || registers.is_some() {
                return Err(syn::Error::new(
                    key.span(),
                    "a group takes `regs = …`, once: its registers a thread",
                ));
            }
            arguments.parse::<Token![=]>()?;
            registers = Some(arguments.parse()?);
            if !arguments.is_empty() {
                arguments.parse::<Token![,]>()?;
            }
        }
    }
    input.parse::<Token![=>]>()?;
    let body = input.parse()?;
    if input.peek(Token![,]) {
        input.parse::<Token![,]>()?;
    }
    Ok(Group { registers, body })
}
