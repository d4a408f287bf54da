//! Which variables a region changes: the scopes of a function body, followed while it is rewritten.
//!
//! A *frame* is something that control can leave or that variables are carried through: an `if`, a loop, a closure. A variable is
//! carried through a frame if it was declared outside and is changed inside, where "changed" is what can be seen in the syntax:
//! * an assignment, plain, compound or destructuring, to it, to a field of it, to an element of it, or through it (`*r = …`);
//! * `&mut` of any of these;
//! * a call of a method named `push` or `…_mut` on it (the names that by custom take `&mut self`), if it is declared `mut` or is seen to be
//!   a `&mut` reference;
//! * a call of any method on such a variable, if nothing of the above in the function changes it: then it is declared `mut` for its methods'
//!   sake. Methods that by custom only read or consume (`len`, `get`, `into_…`) are left out.
//!
//! * a `ref mut` in a pattern that takes it apart.
//!
//! What is left cannot be told from what only reads: a method that takes `&mut self`, has another name, and is called on a variable that is also
//! assigned to somewhere; a `Cell`'s method; and a macro, whose arguments are tokens. If one changes a tile inside a device region, a use of that tile
//! after the region is reported while staging ("used after the loop or branch that made it"), but in the *next round* of a device loop the
//! variable would hold the tile of before the loop. So loops *watch* such variables: staging reports one that a round
//! leaves with other tiles. Writing `(&mut s).advance()` shows the change to the macro.
//!
//! A closure made outside a loop and called inside borrows what it changes, so that cannot be watched. It must be declared `mut`, though, and that is seen:
//! calling it inside a device loop is a type error, as leaving the loop is.

use std::collections::HashSet;

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::ToTokens;
use syn::visit::Visit;
use syn::{BinOp, Block, Expr, Label, Lifetime, Member, Pat, UnOp, parse_quote, parse_quote_spanned};

/// A variable.
struct Binding {
    name: String,
    mutable: bool,
    /// Is it seen to be a `&mut` reference?
    reference: bool,
    /// Is nothing seen that changes it, but what its methods may do?
    by_methods: bool,
    /// Is it seen to be a closure?
    closure: bool,
    /// Has it a value wherever it is visible? Not if declared as `let x;` and so far only assigned inside a frame.
    initialised: bool,
    /// How many frames were open at its declaration.
    depth: usize,
}

/// What a frame is, for what may leave it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum FrameKind {
    /// A staged `if`.
    Branch,
    /// A staged `for` or `while`.
    Loop,
    /// A loop that is left as it is.
    HostLoop,
    /// A labelled block.
    Block,
    /// A closure: nothing leaves it for the outside.
    Closure,
}

/// A place that is changed: a variable, a field of one, or what one refers to.
#[derive(Clone)]
pub struct Place {
    root: String,
    /// The expression whose `&mut` is handed to the region.
    pub expr: Expr,
    /// Fields and dereferences, from the root: a place that is a prefix of another one contains it.
    path: Vec<String>,
    /// The binding was declared without a value.
    pub uninitialised: bool,
}

impl Place {
    fn contains(&self, other: &Place) -> bool {
        self.root == other.root && other.path.starts_with(&self.path)
    }

    /// Where it was first changed.
    pub fn span(&self) -> Span {
        syn::spanned::Spanned::span(&self.expr)
    }
}

/// An open frame.
pub struct Frame {
    /// What it is.
    pub kind: FrameKind,
    label: Option<Ident>,
    /// The variable that holds its state in the expansion.
    pub control: Ident,
    places: Vec<Place>,
    /// Variables that may change unseen inside.
    watched: Vec<Place>,
}

/// What a frame is closed with.
pub struct Closed {
    /// What is changed inside it.
    pub carried: Vec<Place>,
    /// What may be changed unseen, and is not among those.
    pub watched: Vec<Place>,
}

/// The frames that a jump leaves, innermost first, and those of them that it targets.
pub struct Jump {
    /// Frames that are left.
    pub through: Vec<Ident>,
    /// The staged loop that the jump is about, unless it is a host loop.
    pub target: Option<Ident>,
}

/// The scopes and frames open at a point of the body.
#[derive(Default)]
pub struct Scopes {
    /// Names of variables that are seen to be changed somewhere in the function, whatever their other methods do.
    changed: HashSet<String>,
    bindings: Vec<Binding>,
    frames: Vec<Frame>,
    controls: usize,
}

impl Scopes {
    /// For a function with this body.
    pub fn of(body: &Block) -> Scopes {
        let mut changes = Changes(HashSet::new());
        changes.visit_block(body);
        Scopes { changed: changes.0, ..Scopes::default() }
    }

    /// Runs `f` in a scope of its own: what it declares is forgotten afterwards.
    pub fn begin(&self) -> usize {
        self.bindings.len()
    }

    /// Forgets what was declared since [`Scopes::begin`].
    pub fn end(&mut self, mark: usize) {
        self.bindings.truncate(mark);
    }

    /// Declares what a pattern binds. (It also declares constants and variants without fields, as `None`: they look the same,
    /// and no harm is done, since nobody assigns to them.)
    pub fn declare(&mut self, pattern: &Pat) {
        struct Names<'a>(&'a mut Scopes);
        impl<'ast> Visit<'ast> for Names<'_> {
            fn visit_pat_ident(&mut self, pat: &'ast syn::PatIdent) {
                let mutable = pat.mutability.is_some() && pat.by_ref.is_none();
                self.0.push(pat.ident.to_string(), mutable, false);
                syn::visit::visit_pat_ident(self, pat);
            }
            fn visit_pat_type(&mut self, pat: &'ast syn::PatType) {
                self.visit_pat(&pat.pat);
                if matches!(&*pat.ty, syn::Type::Reference(r) if r.mutability.is_some()) {
                    self.0.last_is_reference(&pat.pat);
                }
            }
            fn visit_expr(&mut self, _: &'ast Expr) {}
        }
        Names(self).visit_pat(pattern);
    }

    /// Declares the variables of a `let`.
    pub fn declare_local(&mut self, local: &syn::Local) {
        let mark = self.begin();
        self.declare(&local.pat);
        match &local.init {
            None => self.bindings[mark..].iter_mut().for_each(|b| b.initialised = false),
            Some(init) if matches!(&*init.expr, Expr::Reference(r) if r.mutability.is_some()) => {
                self.last_is_reference(&local.pat);
            }
            Some(init) if matches!(&*init.expr, Expr::Closure(_)) => {
                if let (Pat::Ident(_), Some(last)) = (&local.pat, self.bindings.last_mut()) {
                    last.closure = true;
                }
            }
            Some(_) => {}
        }
    }

    /// Declares a parameter.
    pub fn declare_parameter(&mut self, parameter: &syn::FnArg) {
        match parameter {
            syn::FnArg::Typed(typed) => {
                self.declare(&Pat::Type(typed.clone()));
            }
            syn::FnArg::Receiver(receiver) => {
                let (mutable, reference) = (receiver.mutability.is_some(), receiver.reference.is_some());
                self.push("self".to_owned(), mutable && !reference, mutable && reference);
            }
        }
    }

    fn push(&mut self, name: String, mutable: bool, reference: bool) {
        let depth = self.frames.len();
        let by_methods = !self.changed.contains(&name);
        self.bindings.push(Binding {
            name,
            mutable,
            reference,
            by_methods,
            closure: false,
            initialised: true,
            depth,
        });
    }

    /// The variable just declared by this pattern, if it is just that, is a `&mut` reference.
    fn last_is_reference(&mut self, pattern: &Pat) {
        if let (Pat::Ident(_), Some(last)) = (pattern, self.bindings.last_mut()) {
            last.reference = true;
        }
    }

    /// Opens a frame and returns the name of its state.
    pub fn open(&mut self, kind: FrameKind, label: Option<&Label>, span: Span) -> Ident {
        self.controls += 1;
        // An ordinary name, not a hygienic one: rustc would show the attribute instead of the place of its use.
        let control = Ident::new(&format!("__region{}", self.controls), span);
        let label = label.map(|l| l.name.ident.clone());
        self.frames.push(Frame {
            kind,
            label,
            control: control.clone(),
            places: Vec::new(),
            watched: Vec::new(),
        });
        control
    }

    /// Closes the innermost frame and returns what is changed inside it.
    pub fn close(&mut self) -> Closed {
        let frame = self.frames.pop().expect("frames close in the order opposite to their opening");
        let (carried, mut watched) = (frame.places, frame.watched);
        watched.retain(|w| !w.uninitialised && !carried.iter().any(|p| p.contains(w) || w.contains(p)));
        Closed { carried, watched }
    }

    /// Records that the place `expr` is changed.
    pub fn change(&mut self, expr: &Expr) {
        if let Some(found) = Found::of(expr) {
            self.record(found);
        }
    }

    /// Records a call of a method, if it may take `&mut self`.
    pub fn method_call(&mut self, receiver: &Expr, method: &Ident) {
        let Some(mut found) = Found::of(receiver) else { return };
        let Some(binding) = self.lookup(&found.root).map(|b| &self.bindings[b]) else { return };
        let may_change = changes_by_custom(method) || binding.by_methods && !reads_by_custom(method);
        if (binding.mutable || binding.reference) && may_change {
            // What a reference that is not `mut` itself refers to is reached as an element is.
            found.indexed |= binding.reference;
            self.record(found);
        } else if binding.mutable && !reads_by_custom(method) || method == "set" || method == "replace" {
            self.watch(found);
        }
    }

    /// Records what the tokens of a macro's arguments mention, and it may change.
    pub fn macro_call(&mut self, tokens: TokenStream) {
        let mut after_dot = false;
        for token in tokens {
            let is_dot = matches!(&token, TokenTree::Punct(p) if p.as_char() == '.');
            match token {
                TokenTree::Group(group) => self.macro_call(group.stream()),
                // Only what is declared is a name: others may be keywords.
                TokenTree::Ident(root)
                    if !after_dot && self.lookup(&root).is_some_and(|b| self.bindings[b].mutable) =>
                {
                    let expr = parse_quote!(#root);
                    self.watch(Found { root, expr, path: Vec::new(), indexed: false });
                }
                _ => {}
            }
            after_dot = is_dot;
        }
    }

    /// Records that a variable may change unseen.
    fn watch(&mut self, found: Found) {
        let Some(index) = self.lookup(&found.root) else { return };
        let binding = &self.bindings[index];
        let place = Place {
            root: binding.name.clone(),
            expr: found.expr,
            path: found.path,
            uninitialised: !binding.initialised,
        };
        for frame in self.frames[binding.depth..].iter_mut().filter(|f| f.kind == FrameKind::Loop) {
            if !frame.watched.iter().any(|p| p.contains(&place)) {
                frame.watched.push(place.clone());
            }
        }
    }

    /// The staged loops that a call of this function is in and what it changes is not, if it is a closure that may change what it captures.
    pub fn closure_call(&self, function: &Expr) -> Vec<Ident> {
        let Some(found) = Found::of(function) else { return Vec::new() };
        let Some(binding) = self.lookup(&found.root).map(|b| &self.bindings[b]) else { return Vec::new() };
        if !(binding.closure && binding.mutable) {
            return Vec::new();
        }
        let inside = self.frames[binding.depth..].iter().rev();
        inside.filter(|f| f.kind == FrameKind::Loop).map(|f| f.control.clone()).collect()
    }

    fn lookup(&self, name: &Ident) -> Option<usize> {
        self.bindings.iter().rposition(|b| name == &b.name)
    }

    fn record(&mut self, found: Found) {
        let Some(index) = self.lookup(&found.root) else { return };
        let binding = &mut self.bindings[index];
        if binding.depth == self.frames.len() {
            binding.initialised = true;
            return;
        }
        let mut expr = found.expr;
        let mut path = found.path;
        // An element of something that is not declared `mut` is reached through a reference, and that is what can be borrowed.
        if found.indexed && path.is_empty() && !binding.mutable {
            expr = deref(expr);
            path.push("*".to_owned());
        }
        let uninitialised = !binding.initialised;
        let place = Place { root: binding.name.clone(), expr, path, uninitialised };
        for frame in &mut self.frames[binding.depth..] {
            if !frame.places.iter().any(|p| p.contains(&place)) {
                frame.places.retain(|p| !place.contains(p));
                frame.places.push(place.clone());
            }
        }
    }

    /// What a `break` or `continue` leaves.
    pub fn jump(&self, label: Option<&Lifetime>) -> Jump {
        let mut through = Vec::new();
        for frame in self.frames.iter().rev() {
            let is_target = match (label, frame.kind) {
                (_, FrameKind::Closure) => break,
                (Some(l), _) => frame.label.as_ref() == Some(&l.ident),
                (None, kind) => matches!(kind, FrameKind::Loop | FrameKind::HostLoop),
            };
            let staged = matches!(frame.kind, FrameKind::Branch | FrameKind::Loop);
            if is_target {
                return Jump { through, target: staged.then(|| frame.control.clone()) };
            }
            if staged {
                through.push(frame.control.clone());
            }
        }
        Jump { through, target: None }
    }

    /// What a `return` or `?` leaves.
    pub fn left_by_return(&self) -> Vec<Ident> {
        let inside = self.frames.iter().rev().take_while(|f| f.kind != FrameKind::Closure);
        inside
            .filter(|f| matches!(f.kind, FrameKind::Branch | FrameKind::Loop))
            .map(|f| f.control.clone())
            .collect()
    }
}

/// Does a method of this name by custom take `&mut self`?
fn changes_by_custom(method: &Ident) -> bool {
    method == "push" || method.to_string().ends_with("_mut")
}

/// Does a method of this name by custom take `&self` or `self`?
fn reads_by_custom(method: &Ident) -> bool {
    const NAMES: [&str; 16] = [
        "clone",
        "contains",
        "contains_key",
        "copied",
        "expect",
        "first",
        "get",
        "iter",
        "keys",
        "last",
        "len",
        "load",
        "max",
        "min",
        "unwrap",
        "values",
    ];
    const PREFIXES: [&str; 5] = ["as_", "into_", "is_", "to_", "unwrap_"];
    let method = method.to_string();
    NAMES.contains(&&*method) || PREFIXES.iter().any(|p| method.starts_with(p))
}

/// Finds the variables that are changed in ways that are seen without knowing their methods.
struct Changes(HashSet<String>);

impl Changes {
    fn add(&mut self, place: &Expr) {
        for_each_target(place, &mut |place| {
            self.0.extend(Found::of(place).map(|found| found.root.to_string()));
        });
    }
}

impl<'ast> Visit<'ast> for Changes {
    fn visit_expr_assign(&mut self, e: &'ast syn::ExprAssign) {
        self.add(&e.left);
        syn::visit::visit_expr_assign(self, e);
    }
    fn visit_expr_binary(&mut self, e: &'ast syn::ExprBinary) {
        if is_compound_assignment(&e.op) {
            self.add(&e.left);
        }
        syn::visit::visit_expr_binary(self, e);
    }
    fn visit_expr_reference(&mut self, e: &'ast syn::ExprReference) {
        if e.mutability.is_some() {
            self.add(&e.expr);
        }
        syn::visit::visit_expr_reference(self, e);
    }
    fn visit_expr_method_call(&mut self, e: &'ast syn::ExprMethodCall) {
        if changes_by_custom(&e.method) {
            self.add(&e.receiver);
        }
        syn::visit::visit_expr_method_call(self, e);
    }
    fn visit_local(&mut self, local: &'ast syn::Local) {
        if let Some(init) = &local.init
            && binds_ref_mut(&local.pat)
        {
            self.add(&init.expr);
        }
        syn::visit::visit_local(self, local);
    }
    fn visit_expr_let(&mut self, e: &'ast syn::ExprLet) {
        if binds_ref_mut(&e.pat) {
            self.add(&e.expr);
        }
        syn::visit::visit_expr_let(self, e);
    }
    fn visit_expr_match(&mut self, e: &'ast syn::ExprMatch) {
        if e.arms.iter().any(|arm| binds_ref_mut(&arm.pat)) {
            self.add(&e.expr);
        }
        syn::visit::visit_expr_match(self, e);
    }
    fn visit_item(&mut self, _: &'ast syn::Item) {}
}

/// Does the pattern take a `&mut` of a part of what it is matched with?
pub fn binds_ref_mut(pattern: &Pat) -> bool {
    struct Finder(bool);
    impl<'ast> Visit<'ast> for Finder {
        fn visit_pat_ident(&mut self, pat: &'ast syn::PatIdent) {
            self.0 |= pat.by_ref.is_some() && pat.mutability.is_some();
            syn::visit::visit_pat_ident(self, pat);
        }
        fn visit_expr(&mut self, _: &'ast Expr) {}
    }
    let mut finder = Finder(false);
    finder.visit_pat(pattern);
    finder.0
}

/// Calls `f` on what an assignment assigns to; several places if it takes its right side apart.
pub fn for_each_target(left: &Expr, f: &mut dyn FnMut(&Expr)) {
    match left {
        Expr::Tuple(e) => e.elems.iter().for_each(|e| for_each_target(e, f)),
        Expr::Array(e) => e.elems.iter().for_each(|e| for_each_target(e, f)),
        Expr::Call(e) => e.args.iter().for_each(|e| for_each_target(e, f)),
        Expr::Struct(e) => e.fields.iter().for_each(|field| for_each_target(&field.expr, f)),
        Expr::Paren(e) => for_each_target(&e.expr, f),
        place => f(place),
    }
}

/// Is it `+=` or another like it?
pub fn is_compound_assignment(op: &BinOp) -> bool {
    use BinOp::*;
    matches!(
        op,
        AddAssign(_)
            | SubAssign(_)
            | MulAssign(_)
            | DivAssign(_)
            | RemAssign(_)
            | BitXorAssign(_)
            | BitAndAssign(_)
            | BitOrAssign(_)
            | ShlAssign(_)
            | ShrAssign(_)
    )
}

fn deref(expr: Expr) -> Expr {
    let span = syn::spanned::Spanned::span(&expr);
    parse_quote_spanned!(span=> *#expr)
}

/// A place expression taken apart.
struct Found {
    root: Ident,
    expr: Expr,
    path: Vec<String>,
    indexed: bool,
}

impl Found {
    /// `None` if the expression is no place that starts at a variable.
    fn of(expr: &Expr) -> Option<Found> {
        match expr {
            Expr::Path(path) if path.qself.is_none() => {
                let root = path.path.get_ident()?.clone();
                let span = root.span();
                Some(Found {
                    expr: parse_quote_spanned!(span=> #root),
                    root,
                    path: Vec::new(),
                    indexed: false,
                })
            }
            Expr::Paren(inner) => Found::of(&inner.expr),
            Expr::Group(inner) => Found::of(&inner.expr),
            Expr::Field(field) => {
                let mut found = Found::of(&field.base)?;
                if !found.indexed {
                    let base = found.expr;
                    let member = &field.member;
                    found.path.push(match member {
                        Member::Named(name) => name.to_string(),
                        Member::Unnamed(index) => index.index.to_string(),
                    });
                    found.expr = Expr::Field(syn::ExprField {
                        attrs: Vec::new(),
                        base: Box::new(base),
                        dot_token: field.dot_token,
                        member: member.clone(),
                    });
                }
                Some(found)
            }
            Expr::Index(index) => Found::of(&index.expr).map(|found| Found { indexed: true, ..found }),
            Expr::Unary(unary) if matches!(unary.op, UnOp::Deref(_)) => {
                let mut found = Found::of(&unary.expr)?;
                if !found.indexed {
                    found.expr = deref(found.expr);
                    found.path.push("*".to_owned());
                }
                Some(found)
            }
            _ => None,
        }
    }
}

impl ToTokens for Place {
    fn to_tokens(&self, tokens: &mut proc_macro2::TokenStream) {
        self.expr.to_tokens(tokens);
    }
}
