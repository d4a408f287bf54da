//! Rewrites a function body: walks it once, follows its scopes, and replaces control flow, comparisons and jumps.
//!
//! Left as they are: `match`, `if let`, `while let`, `loop` (host control flow; their bodies are walked), items inside the function,
//! types, patterns, constants and arguments of macros.

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit_mut::{self, VisitMut};
use syn::{
    BinOp, Block, Expr, ExprBinary, ExprClosure, ExprForLoop, ExprIf, ExprWhile, Label, Local, Pat,
    RangeLimits, Stmt, UnOp,
};

use crate::attr::take_host;
use crate::expand::control::Control;
use crate::groups::Groups;
use crate::offsets;
use crate::scope::{Closed, FrameKind, Scopes, binds_ref_mut, for_each_target, is_compound_assignment};

/// The state of the walk.
pub struct Rewriter<'a> {
    control: &'a Control,
    scopes: Scopes,
    errors: Vec<syn::Error>,
}

/// Rewrites the body of a function with these parameters (`self` included).
pub fn body<'p>(
    control: &Control,
    parameters: impl IntoIterator<Item = &'p syn::FnArg>,
    block: &mut Block,
) -> syn::Result<()> {
    let mut rewriter = Rewriter { control, scopes: Scopes::of(block), errors: Vec::new() };
    parameters.into_iter().for_each(|p| rewriter.scopes.declare_parameter(p));
    rewriter.visit_block_mut(block);
    match rewriter.errors.into_iter().reduce(|mut all, e| {
        all.combine(e);
        all
    }) {
        Some(errors) => Err(errors),
        None => Ok(()),
    }
}

impl VisitMut for Rewriter<'_> {
    // Nothing in these is run where it stands.
    fn visit_item_mut(&mut self, _: &mut syn::Item) {}
    fn visit_type_mut(&mut self, _: &mut syn::Type) {}
    fn visit_path_mut(&mut self, _: &mut syn::Path) {}
    fn visit_pat_mut(&mut self, _: &mut Pat) {}
    fn visit_macro_mut(&mut self, call: &mut syn::Macro) {
        self.scopes.macro_call(call.tokens.clone());
    }
    fn visit_angle_bracketed_generic_arguments_mut(&mut self, _: &mut syn::AngleBracketedGenericArguments) {}

    fn visit_block_mut(&mut self, block: &mut Block) {
        let scope = self.scopes.begin();
        let last = block.stmts.len().wrapping_sub(1);
        for (index, stmt) in block.stmts.iter_mut().enumerate() {
            match stmt {
                // An `if` whose value nobody can see: no need to give it one.
                Stmt::Expr(expr @ Expr::If(_), None) if index != last => self.branch(expr, false),
                Stmt::Macro(syn::StmtMacro { mac, .. })
                | Stmt::Expr(Expr::Macro(syn::ExprMacro { mac, .. }), _)
                    if is_groups(mac) =>
                {
                    if let Some(tokens) = self.groups(mac) {
                        *stmt = Stmt::Expr(Expr::Verbatim(tokens), None);
                    }
                }
                _ => self.visit_stmt_mut(stmt),
            }
        }
        self.scopes.end(scope);
    }

    fn visit_local_mut(&mut self, local: &mut Local) {
        if let Some(init) = &mut local.init {
            self.visit_expr_mut(&mut init.expr);
            self.matched(&local.pat, &init.expr);
            if let Some((_, diverge)) = &mut init.diverge {
                self.visit_expr_mut(diverge);
            }
        }
        self.scopes.declare_local(local);
    }

    fn visit_expr_mut(&mut self, expr: &mut Expr) {
        match expr {
            Expr::If(_) => self.branch(expr, true),
            Expr::ForLoop(_) => self.for_loop(expr),
            Expr::While(_) => self.while_loop(expr),
            Expr::Loop(e) => self.host_loop(e.label.as_ref(), &mut e.body, e.loop_token.span),
            Expr::Block(e) if e.label.is_some() => {
                self.scopes.open(FrameKind::Block, e.label.as_ref(), Span::call_site());
                self.visit_block_mut(&mut e.block);
                self.scopes.close();
            }
            Expr::Match(e) => {
                self.visit_expr_mut(&mut e.expr);
                for arm in &mut e.arms {
                    self.matched(&arm.pat, &e.expr);
                    let scope = self.scopes.begin();
                    self.scopes.declare(&arm.pat);
                    if let Some((_, guard)) = &mut arm.guard {
                        self.host_condition(guard);
                    }
                    self.visit_expr_mut(&mut arm.body);
                    self.scopes.end(scope);
                }
            }
            Expr::Closure(e) => self.closure(e),
            Expr::Async(e) => self.errors.push(syn::Error::new(
                e.async_token.span,
                "an `async` block cannot be staged: tiles exist only while their kernel is built",
            )),
            Expr::Const(_) => {}
            Expr::Repeat(e) => self.visit_expr_mut(&mut e.expr),
            Expr::Assign(e) => {
                self.visit_expr_mut(&mut e.right);
                self.visit_expr_mut(&mut e.left);
                for_each_target(&e.left, &mut |place| self.scopes.change(place));
            }
            Expr::Reference(e) => {
                self.visit_expr_mut(&mut e.expr);
                if e.mutability.is_some() {
                    self.scopes.change(&e.expr);
                }
            }
            Expr::MethodCall(e) => {
                self.visit_expr_mut(&mut e.receiver);
                e.args.iter_mut().for_each(|a| self.visit_expr_mut(a));
                offsets::array_to_tuple(&e.method, &mut e.args);
                self.scopes.method_call(&e.receiver, &e.method);
            }
            Expr::Call(e) => {
                visit_mut::visit_expr_call_mut(self, e);
                let through = self.scopes.closure_call(&e.func);
                if let Some(call) = self.control.closure_call(e, &through) {
                    *expr = Expr::Verbatim(call);
                }
            }
            Expr::Binary(_) => self.binary(expr),
            Expr::Break(_) | Expr::Continue(_) | Expr::Return(_) | Expr::Try(_) => self.jump(expr),
            _ => visit_mut::visit_expr_mut(self, expr),
        }
    }
}

impl Rewriter<'_> {
    /// Records what a pattern does to what it is matched with.
    fn matched(&mut self, pattern: &Pat, expr: &Expr) {
        if binds_ref_mut(pattern) {
            for_each_target(expr, &mut |place| self.scopes.change(place));
        }
    }

    fn branch(&mut self, expr: &mut Expr, valued: bool) {
        let Expr::If(branch) = expr else { unreachable!("called on an `if`") };
        if take_host(&mut branch.attrs) || has_let(&branch.cond) {
            return self.host_branch(branch);
        }
        self.visit_expr_mut(&mut branch.cond);
        let control = self.scopes.open(FrameKind::Branch, None, branch.if_token.span);
        self.visit_block_mut(&mut branch.then_branch);
        if let Some((_, otherwise)) = &mut branch.else_branch {
            match &mut **otherwise {
                nested @ Expr::If(_) => self.branch(nested, valued),
                other => self.visit_expr_mut(other),
            }
        }
        let carried = self.close("if").carried;
        *expr = Expr::Verbatim(self.control.branch(branch, &control, &carried, valued));
    }

    fn host_branch(&mut self, branch: &mut ExprIf) {
        let scope = self.scopes.begin();
        self.host_condition(&mut branch.cond);
        self.visit_block_mut(&mut branch.then_branch);
        self.scopes.end(scope);
        if let Some((_, otherwise)) = &mut branch.else_branch {
            self.visit_expr_mut(otherwise);
        }
    }

    /// A condition that must be a `bool`, with `let` in it or not: declares what that binds.
    fn host_condition(&mut self, condition: &mut Expr) {
        match condition {
            Expr::Let(e) => {
                self.visit_expr_mut(&mut e.expr);
                self.matched(&e.pat, &e.expr);
                self.scopes.declare(&e.pat);
            }
            Expr::Binary(ExprBinary { left, right, op: BinOp::And(_), .. }) => {
                self.host_condition(left);
                self.host_condition(right);
            }
            other => self.visit_expr_mut(other),
        }
    }

    fn for_loop(&mut self, expr: &mut Expr) {
        let Expr::ForLoop(ExprForLoop { attrs, label, for_token, pat, expr: head, body, .. }) = expr else {
            unreachable!("called on a `for`")
        };
        self.visit_expr_mut(head);
        let host = take_host(attrs);
        if !host {
            self.range_head(head);
        }
        let kind = if host { FrameKind::HostLoop } else { FrameKind::Loop };
        let control = self.scopes.open(kind, label.as_ref(), for_token.span);
        let scope = self.scopes.begin();
        self.scopes.declare(pat);
        self.visit_block_mut(body);
        self.scopes.end(scope);
        let closed = self.close("for");
        if let Expr::ForLoop(e) = expr
            && !host
        {
            *expr = Expr::Verbatim(self.control.for_loop(e, &control, &closed));
        }
    }

    /// `warp_groups! { … }`: two regions, one after the other.
    fn groups(&mut self, call: &syn::Macro) -> Option<proc_macro2::TokenStream> {
        let mut groups: Groups = match call.parse_body() {
            Ok(groups) => groups,
            Err(error) => {
                self.errors.push(error);
                return None;
            }
        };
        let span = call.path.span();
        let control = self.scopes.open(FrameKind::Branch, None, span);
        for group in [&mut groups.producer, &mut groups.consumer] {
            if let Some(registers) = &mut group.registers {
                self.visit_expr_mut(registers);
            }
            self.visit_block_mut(&mut group.body);
        }
        // Nothing is carried: what a group makes is its own.
        self.scopes.close();
        Some(self.control.groups(&groups, &control, span))
    }

    /// Replaces `lo..hi`, also as the receiver of `.step_by(…)` and such, by a call that takes tiles, too.
    fn range_head(&self, head: &mut Expr) {
        match head {
            Expr::MethodCall(call) => self.range_head(&mut call.receiver),
            Expr::Paren(inner) if matches!(*inner.expr, Expr::Range(_)) => {
                let mut range = (*inner.expr).clone();
                self.range_head(&mut range);
                if matches!(range, Expr::Verbatim(_)) {
                    *head = range;
                }
            }
            Expr::Range(range) => {
                if let (Some(lo), RangeLimits::HalfOpen(dots), Some(hi)) =
                    (&range.start, range.limits, &range.end)
                {
                    *head = Expr::Verbatim(self.control.range(lo, hi, dots.spans[0]));
                }
            }
            _ => {}
        }
    }

    fn while_loop(&mut self, expr: &mut Expr) {
        let Expr::While(ExprWhile { attrs, label, while_token, cond, body, .. }) = expr else {
            unreachable!("called on a `while`")
        };
        let host = take_host(attrs) || has_let(cond);
        let kind = if host { FrameKind::HostLoop } else { FrameKind::Loop };
        let control = self.scopes.open(kind, label.as_ref(), while_token.span);
        let scope = self.scopes.begin();
        if host {
            self.host_condition(cond);
        } else {
            self.visit_expr_mut(cond);
        }
        self.visit_block_mut(body);
        self.scopes.end(scope);
        let closed = self.close("while");
        if let Expr::While(e) = expr
            && !host
        {
            *expr = Expr::Verbatim(self.control.while_loop(e, &control, &closed));
        }
    }

    fn host_loop(&mut self, label: Option<&Label>, body: &mut Block, span: Span) {
        self.scopes.open(FrameKind::HostLoop, label, span);
        self.visit_block_mut(body);
        self.scopes.close();
    }

    fn closure(&mut self, closure: &mut ExprClosure) {
        self.scopes.open(FrameKind::Closure, None, closure.or1_token.span);
        let scope = self.scopes.begin();
        closure.inputs.iter().for_each(|p| self.scopes.declare(p));
        self.visit_expr_mut(&mut closure.body);
        self.scopes.end(scope);
        self.scopes.close();
    }

    /// Closes a frame; what it carries must have had a value when it began.
    fn close(&mut self, what: &str) -> Closed {
        let Closed { carried, watched } = self.scopes.close();
        let (unset, carried): (Vec<_>, Vec<_>) = carried.into_iter().partition(|p| p.uninitialised);
        for place in unset {
            let name = quote::quote!(#place).to_string();
            let hint = if what == "if" {
                format!(
                    "write `let {name} = if … {{ … }} else {{ … }};`, or mark a host `if` as `#[host] if`"
                )
            } else {
                "give it one where it is declared".to_owned()
            };
            let message = format!("`{name}` is assigned inside `{what}`, but has no value before it: {hint}");
            self.errors.push(syn::Error::new(place.span(), message));
        }
        Closed { carried, watched }
    }

    fn binary(&mut self, expr: &mut Expr) {
        let Expr::Binary(binary) = expr else { unreachable!("called on a binary operator") };
        self.visit_expr_mut(&mut binary.left);
        let jumps = contains_jump(&binary.right);
        self.visit_expr_mut(&mut binary.right);
        if is_compound_assignment(&binary.op) {
            self.scopes.change(&binary.left);
            return;
        }
        // What leaves the function from the right of `&&` cannot be put in a closure; it is host code, too.
        let logical = matches!(binary.op, BinOp::And(_) | BinOp::Or(_));
        if logical && jumps || is_literal(&binary.left) && is_literal(&binary.right) {
            return;
        }
        if let Some(call) = self.control.binary(binary) {
            *expr = Expr::Verbatim(call);
        }
    }

    fn jump(&mut self, expr: &mut Expr) {
        visit_mut::visit_expr_mut(self, expr);
        let replaced = match &*expr {
            Expr::Break(e) => {
                self.control.leave(expr, "may_break", e.break_token.span, &self.scopes.jump(e.label.as_ref()))
            }
            Expr::Continue(e) => {
                // The innermost loop itself goes on, device loop or not; only outer ones are broken out of.
                let mut jump = self.scopes.jump(e.label.as_ref());
                jump.target = None;
                self.control.leave(expr, "may_continue", e.continue_token.span, &jump)
            }
            Expr::Return(e) => {
                let through = self.scopes.left_by_return();
                self.control.leave(
                    expr,
                    "may_return",
                    e.return_token.span,
                    &crate::scope::Jump { through, target: None },
                )
            }
            Expr::Try(e) => self.control.question_mark(e, &self.scopes.left_by_return()),
            _ => unreachable!("called on a jump"),
        };
        if let Some(tokens) = replaced {
            *expr = Expr::Verbatim(tokens);
        }
    }
}

fn is_groups(call: &syn::Macro) -> bool {
    call.path.segments.last().is_some_and(|s| s.ident == "warp_groups")
}

/// Has the condition a `let` in it?
fn has_let(condition: &Expr) -> bool {
    match condition {
        Expr::Let(_) => true,
        Expr::Binary(ExprBinary { left, right, op: BinOp::And(_), .. }) => has_let(left) || has_let(right),
        _ => false,
    }
}

/// A literal, perhaps negated or in parentheses.
pub fn is_literal(expr: &Expr) -> bool {
    match expr {
        Expr::Lit(_) => true,
        Expr::Unary(e) => matches!(e.op, UnOp::Neg(_)) && is_literal(&e.expr),
        Expr::Paren(e) => is_literal(&e.expr),
        Expr::Group(e) => is_literal(&e.expr),
        _ => false,
    }
}

/// Does it, outside closures, jump somewhere?
fn contains_jump(expr: &Expr) -> bool {
    struct Finder(bool);
    impl<'ast> syn::visit::Visit<'ast> for Finder {
        fn visit_expr(&mut self, expr: &'ast Expr) {
            match expr {
                Expr::Break(_) | Expr::Continue(_) | Expr::Return(_) | Expr::Try(_) | Expr::Await(_) => {
                    self.0 = true
                }
                Expr::Closure(_) | Expr::Async(_) => {}
                _ => syn::visit::visit_expr(self, expr),
            }
        }
        fn visit_item(&mut self, _: &'ast syn::Item) {}
    }
    let mut finder = Finder(false);
    syn::visit::Visit::visit_expr(&mut finder, expr);
    finder.0
}
