//! The text that control flow, comparisons and jumps become.
//!
//! `if c { A } else { B }`, as a statement that changes `x`:
//! ```text
//! {
//!     let mut region = branch(c);                   // takes a `bool` or a `Tile<bool>`
//!     carry(&mut region, &mut x);                   // device: remembers x
//!     if enter_then(&mut region) { A }              // host: if the condition is true; device: always
//!     carry(&mut region, &mut x);                   // device: the branch yields x; x is what it was
//!     if enter_else(&mut region) { B }
//!     carry(&mut region, &mut x);                   // device: the branch yields x
//!     close(&mut region);                           // device: appends the operation
//!     carry(&mut region, &mut x);                   // device: x is its result
//! }
//! ```
//! Each variable is handed over by a call of its own, so that rustc's complaint about one names that one. Loops have the same
//! protocol; on the host, `carry` does nothing.
//!
//! # Spans
//! Calls have the span of the token that the user wrote (`if`, `<`, …), so `#[track_caller]` in them gives that place.

use proc_macro2::{Delimiter, Group, Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{
    BinOp, Block, Expr, ExprBinary, ExprCall, ExprForLoop, ExprIf, ExprReference, ExprTry, ExprWhile, Path,
    token,
};

use crate::groups::Groups;
use crate::rewrite::is_literal;
use crate::scope::{Closed, Jump, Place};

/// Writes control flow; knows only where the traits live.
pub struct Control {
    staging: TokenStream,
}

impl Control {
    /// For traits in the module `staging` of `krate`.
    pub fn new(krate: &Path) -> Control {
        Control { staging: quote!(#krate::staging) }
    }

    /// The path of a function or trait of the staging module. All of it has the user's span: a call's place is where its path starts.
    fn path(&self, name: &str, span: Span) -> TokenStream {
        let name = Ident::new(name, span);
        let staging = respan(self.staging.clone(), span);
        quote_spanned!(span=> #staging::#name)
    }

    /// A variant of `Option`.
    fn option(&self, variant: &str, span: Span) -> TokenStream {
        let variant = Ident::new(variant, span);
        quote_spanned!(span=> ::core::option::Option::#variant)
    }

    fn carry(&self, control: &Ident, carried: &[Place]) -> TokenStream {
        carried
            .iter()
            .map(|place| {
                let carry = self.path("carry", place.span());
                let control = Ident::new(&control.to_string(), place.span());
                let name = place.to_token_stream().to_string().replace(' ', "");
                quote_spanned!(place.span()=> #carry(&mut #control, &mut #place, #name);)
            })
            .collect()
    }

    /// Looks at what a loop does not carry and may change unseen, and hands over what it carries.
    fn pass(&self, control: &Ident, closed: &Closed) -> TokenStream {
        let watch = closed.watched.iter().map(|place| {
            let span = place.span();
            let [watch, watched, handles, none] =
                ["watch", "Watched", "Handles", "NoHandles"].map(|name| self.path(name, span));
            let control = Ident::new(&control.to_string(), span);
            let name = place.to_token_stream().to_string().replace(' ', "");
            quote_spanned! {span=> #watch(&mut #control, || {
                #[allow(unused_imports)]
                use #handles as _;
                #[allow(unused_imports)]
                use #none as _;
                (&#watched(&#place)).handles()
            }, #name); }
        });
        let carry = self.carry(control, &closed.carried);
        quote!(#(#watch)* #carry)
    }

    /// An `if`, whose parts have been rewritten.
    pub fn branch(&self, branch: &ExprIf, control: &Ident, carried: &[Place], valued: bool) -> TokenStream {
        let span = branch.if_token.span;
        let ExprIf { attrs, cond, then_branch, else_branch, .. } = branch;
        let carry = self.carry(control, carried);
        let [begin, enter_then, enter_else, close, give, merge] =
            ["branch", "enter_then", "enter_else", "close", "give", "merge"]
                .map(|name| self.path(name, span));
        let otherwise = else_branch.as_ref().map(|(_, e)| match &**e {
            Expr::Block(block) if valued => argument(&block.block),
            Expr::Block(block) => quote!(#block),
            other => quote_spanned!(other.span()=> { #other }),
        });
        match otherwise {
            Some(otherwise) if valued => {
                let then = format_ident!("{control}_then");
                let alternative = format_ident!("{control}_else");
                let then_branch = argument(then_branch);
                let [some, none] = ["Some", "None"].map(|name| self.option(name, span));
                // A branch may diverge, as in `if host { return }`; then what is around it is never reached.
                quote_spanned! {span=> #(#attrs)* {
                    let mut #control = #begin(#cond);
                    #carry
                    #[allow(unreachable_code)]
                    let #then = if #enter_then(&mut #control) { #some(#give(#then_branch, &mut #control)) } else { #none };
                    #carry
                    #[allow(unreachable_code)]
                    let #alternative = if #enter_else(&mut #control) { #some(#give(#otherwise, &mut #control)) } else { #none };
                    #carry
                    let #then = #merge(&mut #control, #then, #alternative);
                    #carry
                    #then
                }}
            }
            _ => {
                let otherwise = otherwise.unwrap_or_else(|| quote_spanned!(span=> {}));
                quote_spanned! {span=> #(#attrs)* {
                    let mut #control = #begin(#cond);
                    #carry
                    if #enter_then(&mut #control) #then_branch
                    #carry
                    if #enter_else(&mut #control) #otherwise
                    #carry
                    #close(&mut #control);
                    #carry
                }}
            }
        }
    }

    /// A `for`, whose parts have been rewritten.
    pub fn for_loop(&self, e: &ExprForLoop, control: &Ident, closed: &Closed) -> TokenStream {
        let span = e.for_token.span;
        let ExprForLoop { attrs, label, pat, expr: head, body, .. } = e;
        // After the loop there is nothing to look at, and a host loop may have moved it away.
        let (pass, carry) = (self.pass(control, closed), self.carry(control, &closed.carried));
        let [begin, next] = ["for_loop", "next"].map(|name| self.path(name, span));
        let item = format_ident!("{control}_item");
        let some = self.option("Some", span);
        // The pattern stands in a `let` of its own, so that one that may not match is an error, as in a `for`.
        quote_spanned! {span=> #(#attrs)* {
            let mut #control = #begin(#head);
            #label while let #some(#item) = { #pass #next(&mut #control) } {
                let #pat = #item;
                #body
            }
            #carry
        }}
    }

    /// A `while`, whose parts have been rewritten. The condition's type is known only after it has been evaluated, inside the region; so the
    /// type of the loop's state is inferred from it.
    pub fn while_loop(&self, e: &ExprWhile, control: &Ident, closed: &Closed) -> TokenStream {
        let span = e.while_token.span;
        let ExprWhile { attrs, label, cond, body, .. } = e;
        // After the loop there is nothing to look at, and a host loop may have moved it away.
        let (pass, carry) = (self.pass(control, closed), self.carry(control, &closed.carried));
        let [begin, again, condition, enter] =
            ["while_loop", "again", "condition", "enter_body"].map(|name| self.path(name, span));
        quote_spanned! {span=> #(#attrs)* {
            let mut #control = #begin();
            #label while { #pass #again(&mut #control) } && { #condition(&mut #control, #cond); #pass #enter(&mut #control) } #body
            #carry
        }}
    }

    /// A `warp_groups!`, whose groups have been rewritten.
    pub fn groups(&self, groups: &Groups, control: &Ident, span: Span) -> TokenStream {
        let [begin, enter, close] =
            ["warp_groups", "enter_group", "close_groups"].map(|name| self.path(name, span));
        let [some, none] = ["Some", "None"].map(|name| self.option(name, span));
        let [producer, consumer] = [&groups.producer, &groups.consumer].map(|g| &g.body);
        let registers = [&groups.producer, &groups.consumer].map(|g| match &g.registers {
            Some(count) => quote_spanned!(count.span()=> #some(#count)),
            None => none.clone(),
        });
        quote_spanned! {span=> {
            let mut #control = #begin(#(#registers),*);
            #enter(&mut #control);
            #producer
            #enter(&mut #control);
            #consumer
            #close(&mut #control);
        }}
    }

    /// A range in the head of a `for`.
    pub fn range(&self, lo: &Expr, hi: &Expr, span: Span) -> TokenStream {
        let range = self.path(if is_literal(lo) { "range_from" } else { "range" }, span);
        quote_spanned!(span=> #range(#lo, #hi))
    }

    /// A comparison, `&&` or `||`; `None` for other operators.
    pub fn binary(&self, e: &ExprBinary) -> Option<TokenStream> {
        let ExprBinary { left, right, op, .. } = e;
        let (name, mirrored) = match op {
            BinOp::Eq(_) => ("eq", "eq"),
            BinOp::Ne(_) => ("ne", "ne"),
            BinOp::Lt(_) => ("lt", "gt"),
            BinOp::Le(_) => ("le", "ge"),
            BinOp::Gt(_) => ("gt", "lt"),
            BinOp::Ge(_) => ("ge", "le"),
            BinOp::And(_) => ("and", ""),
            BinOp::Or(_) => ("or", ""),
            _ => return None,
        };
        let span = first_span(op);
        if mirrored.is_empty() {
            let function = self.path(name, span);
            return Some(quote_spanned!(span=> #function(#left, || #right)));
        }
        // A literal has many possible types until the other side decides, so the side with a type goes first.
        let (name, left, right) =
            if is_literal(left) { (mirrored, right, left) } else { (name, left, right) };
        let (left, right) = (borrow(left), borrow(right));
        let function = self.path(name, span);
        Some(quote_spanned!(span=> #function(#left, #right)))
    }

    /// A jump, after calls that are allowed only if all it leaves is host control flow.
    pub fn leave(&self, jump: &Expr, marker: &str, span: Span, left: &Jump) -> Option<TokenStream> {
        let regions = one_argument(left.through.iter().chain(&left.target), span)?;
        let marker = self.path(marker, span);
        Some(quote_spanned!(span=> { #marker(#regions); #jump }))
    }

    /// A call of a closure that may change what it captures, which no device loop around the call could carry.
    pub fn closure_call(&self, call: &ExprCall, loops: &[Ident]) -> Option<TokenStream> {
        let span = call.func.span();
        let marker = self.path("may_call", span);
        let regions = one_argument(loops, span)?;
        Some(quote_spanned!(span=> { #marker(#regions); #call }))
    }

    /// `e?`: as for `return`, but the marker is wrapped around `e`, whose temporaries must live on.
    pub fn question_mark(&self, e: &ExprTry, left: &[Ident]) -> Option<TokenStream> {
        let span = e.question_token.span;
        let marker = self.path("may_try", span);
        let inner = &e.expr;
        let regions = one_argument(left, span)?;
        Some(quote_spanned!(span=> #marker(#regions, #inner)?))
    }
}

/// Regions as one argument, in pairs, so that rustc complains once about all of them. `None` if there are none.
fn one_argument<'a>(regions: impl IntoIterator<Item = &'a Ident>, span: Span) -> Option<TokenStream> {
    let regions = regions.into_iter().map(|r| Ident::new(&r.to_string(), span));
    regions.map(|r| quote_spanned!(span=> &#r)).reduce(|outer, inner| quote_spanned!(span=> (#outer, #inner)))
}

/// A block as an argument of a call. Its braces are the macro's, so that rustc does not call them unnecessary.
fn argument(block: &Block) -> TokenStream {
    let stmts = &block.stmts;
    let mut group = Group::new(Delimiter::Brace, quote!(#(#stmts)*));
    group.set_span(Span::mixed_site().located_at(block.brace_token.span.join()));
    group.into_token_stream()
}

/// `&e`; as syntax, so that parentheses are printed where precedence asks for them.
fn borrow(e: &Expr) -> Expr {
    Expr::Reference(ExprReference {
        attrs: Vec::new(),
        and_token: token::And(e.span()),
        mutability: None,
        expr: Box::new(e.clone()),
    })
}

/// The span of an operator's first character (on stable, spans of several tokens cannot be joined).
fn first_span(op: &BinOp) -> Span {
    match op {
        BinOp::Eq(t) => t.spans[0],
        BinOp::Ne(t) => t.spans[0],
        BinOp::Lt(t) => t.spans[0],
        BinOp::Le(t) => t.spans[0],
        BinOp::Gt(t) => t.spans[0],
        BinOp::Ge(t) => t.spans[0],
        BinOp::And(t) => t.spans[0],
        BinOp::Or(t) => t.spans[0],
        other => other.span(),
    }
}

/// The same tokens, all with this span.
pub fn respan(tokens: TokenStream, span: Span) -> TokenStream {
    tokens
        .into_iter()
        .map(|mut token| {
            if let TokenTree::Group(group) = &token {
                token = Group::new(group.delimiter(), respan(group.stream(), span)).into();
            }
            token.set_span(span);
            token
        })
        .collect()
}
