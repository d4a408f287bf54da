//! What a kernel has around its body: a type to stage it by, and a function to launch it by.
//!
//! `pub fn scale<T: Float>(x: View<T, 1>, factor: Scalar<f32>, block: usize)` becomes
//! * a struct `scale<T>` with `scale::<T>::stage(block)`, which declares the run-time parameters from their types and runs the body;
//! * an implementation of `KernelDef` for it, for code that is generic over kernels;
//! * a function `scale<T>(x: impl IntoArg<View<T, 1>>, …, block: usize)`, which packs a launch. Staging is left to a closure that runs only if no
//!   compiled kernel is found for the key, so the way to a known kernel does not allocate.
//!
//! A struct with braces takes a name as a type only, so the two can share the user's name.
//!
//! Parameters keep the names that the user gave them, in the same scopes as what is introduced here. So a variable of ours is an [`own`] one, which
//! no parameter can be, and an item (hygiene does not cover those) has a name that nobody writes.

use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Attribute, Block, GenericParam, Ident, ItemFn, Meta, WherePredicate, parse_quote};

use crate::attr::Args;
use crate::expand::control::respan;
use crate::valid::Parameter;

/// Everything for a kernel with this rewritten body.
pub fn expand(args: &Args, item: &ItemFn, parameters: &[Parameter], block: &Block) -> TokenStream {
    let definition = definition(item);
    let stage = stage(args, item, parameters, block);
    let launch = launch(args, item, parameters);
    quote!(#definition #stage #launch)
}

/// Attributes that also make sense on a struct and on the launching function.
fn shared_attrs(item: &ItemFn) -> Vec<&Attribute> {
    let shared = ["doc", "cfg", "deprecated", "allow", "expect", "warn", "deny"];
    item.attrs.iter().filter(|a| shared.iter().any(|name| a.path().is_ident(name))).collect()
}

/// Attributes of the body: all but the documentation.
fn body_attrs(item: &ItemFn) -> impl Iterator<Item = &Attribute> {
    item.attrs.iter().filter(|a| !matches!(&a.meta, Meta::NameValue(m) if m.path.is_ident("doc")))
}

/// The struct.
fn definition(item: &ItemFn) -> TokenStream {
    let ItemFn { vis, sig, .. } = item;
    let name = &sig.ident;
    let attrs = shared_attrs(item);
    let (generics, _, where_clause) = sig.generics.split_for_impl();
    let types = sig.generics.type_params().map(|p| &p.ident);
    quote! {
        #(#attrs)*
        #[allow(non_camel_case_types, dead_code)]
        #vis struct #name #generics #where_clause {
            types: ::core::marker::PhantomData<fn() -> (#(#types,)*)>,
        }
    }
}

/// `stage` and `KernelDef`.
fn stage(args: &Args, item: &ItemFn, parameters: &[Parameter], block: &Block) -> TokenStream {
    let krate = &args.krate;
    let ItemFn { vis, sig, .. } = item;
    let name = &sig.ident;
    let text = plain_name(name);
    let (generics, ty_generics, where_clause) = sig.generics.split_for_impl();
    let inputs = &sig.inputs;
    let attrs: Vec<_> = body_attrs(item).collect();

    let meta: Vec<&Parameter> = parameters.iter().filter(|p| !p.runtime).collect();
    let meta_names: Vec<&Ident> = meta.iter().map(|p| &p.name).collect();
    let meta_types: Vec<_> = meta.iter().map(|p| &p.ty).collect();
    let values = parameters.iter().map(|Parameter { name, ty, runtime }| {
        let text = plain_name(name);
        if *runtime {
            quote_spanned!(ty.span()=> <#ty as #krate::Argument>::declare(#text))
        } else {
            quote!(#name)
        }
    });
    let turbofish = ty_generics.as_turbofish();
    let suffixes = sig.generics.params.iter().map(|p| match p {
        GenericParam::Type(t) => {
            let t = &t.ident;
            quote!(::core::any::type_name::<#t>().into())
        }
        GenericParam::Const(c) => {
            let c = &c.ident;
            quote!(::std::format!("{:?}", #c))
        }
        GenericParam::Lifetime(_) => quote!(::std::string::String::new()),
    });
    let hint_fields = args.hints.iter().map(|hint| {
        let (field, value) = (&hint.name, &hint.value);
        if hint.optional {
            quote!(#field: ::core::option::Option::Some(#value))
        } else {
            quote!(#field: #value)
        }
    });
    let span = Span::call_site();
    let (hints, full_name) = (own("hints", span), own("name", span));
    let doc = format!("Builds the IR of [`{text}`](fn@{text}) for these meta-parameters, without a device.");
    quote! {
        #[allow(clippy::too_many_arguments)]
        impl #generics #name #ty_generics #where_clause {
            #[doc = #doc]
            ///
            /// # Errors
            /// All that is wrong with the kernel for these types and values, with places in the source.
            #[track_caller]
            #vis fn stage(#(#meta_names: #meta_types),*) -> ::core::result::Result<#krate::Kernel, #krate::Diagnostics> {
                #(#attrs)*
                #[allow(unused_parens, unused_braces)]
                fn __tegula_body #generics (#inputs) #where_clause #block
                let #hints = #krate::KernelHints { #(#hint_fields,)* ..::core::default::Default::default() };
                let #full_name = #krate::staging::kernel_name(#text, &[#(#suffixes),*]);
                #krate::stage(&#full_name, #hints, move || __tegula_body #turbofish (#(#values),*))
            }
        }

        impl #generics #krate::KernelDef for #name #ty_generics #where_clause {
            const NAME: &'static str = #text;
            type Meta = (#(#meta_types,)*);
            fn stage((#(#meta_names,)*): Self::Meta) -> ::core::result::Result<#krate::Kernel, #krate::Diagnostics> {
                <Self>::stage(#(#meta_names),*)
            }
        }
    }
}

/// The function that makes a launch.
fn launch(args: &Args, item: &ItemFn, parameters: &[Parameter]) -> TokenStream {
    let krate = &args.krate;
    let ItemFn { vis, sig, .. } = item;
    let name = &sig.ident;
    let attrs = shared_attrs(item);
    let text = plain_name(name);

    let mut generics = sig.generics.clone();
    // A key holds the `TypeId`s of the types. The bound goes where the type's other bounds are: clippy wants them in one place.
    let mut bare = Vec::new();
    for param in generics.type_params_mut() {
        if param.bounds.is_empty() {
            bare.push(param.ident.clone());
        } else {
            param.bounds.push(parse_quote!('static));
        }
    }
    if !bare.is_empty() {
        generics
            .make_where_clause()
            .predicates
            .extend(bare.iter().map(|p| -> WherePredicate { parse_quote!(#p: 'static) }));
    }
    generics.params.insert(0, parse_quote!('arg));
    let (generics, _, where_clause) = generics.split_for_impl();

    let inputs = parameters.iter().map(|Parameter { name, ty, runtime }| {
        if *runtime {
            quote_spanned!(ty.span()=> #name: impl #krate::IntoArg<'arg, #ty>)
        } else {
            quote!(#name: #ty)
        }
    });
    let runtime: Vec<&Ident> = parameters.iter().filter(|p| p.runtime).map(|p| &p.name).collect();
    let meta: Vec<&Ident> = parameters.iter().filter(|p| !p.runtime).map(|p| &p.name).collect();
    let key_metas = parameters.iter().filter(|p| !p.runtime).map(|Parameter { name, ty, .. }| {
        // All of it has the type's place: that is what may be no meta-parameter.
        let span = ty.span();
        let add = respan(quote!(#krate::KernelKey::meta_param), span);
        let (key, mut name) = (own("key", span), name.clone());
        name.set_span(span.resolved_at(name.span()));
        quote_spanned!(span=> let #key = #add(#key, &#name);)
    });
    let span = Span::call_site();
    let (key, stage) = (own("key", span), own("stage", span));
    let count = runtime.len();
    let runtime_texts = runtime.iter().map(|name| plain_name(name));
    let key_parts = sig.generics.params.iter().map(|p| match p {
        GenericParam::Type(t) => {
            let t = &t.ident;
            quote!(.type_param::<#t>())
        }
        GenericParam::Const(c) => {
            let c = &c.ident;
            quote!(.meta(&#c))
        }
        GenericParam::Lifetime(_) => TokenStream::new(),
    });
    let (_, ty_generics, _) = sig.generics.split_for_impl();
    let turbofish = ty_generics.as_turbofish();
    quote! {
        #(#attrs)*
        #[allow(dead_code, clippy::too_many_arguments)]
        #[must_use = "nothing runs until the launch is launched"]
        #vis fn #name #generics (#(#inputs),*) -> #krate::Launch<'arg, #count, impl #krate::Stage> #where_clause {
            static __TEGULA_INFO: #krate::KernelInfo = #krate::KernelInfo::new(
                ::core::concat!(::core::module_path!(), "::", #text),
                #text,
                &[#(#runtime_texts),*],
                ::core::file!(),
                ::core::line!(),
            );
            let #key = #krate::KernelKey::new(&__TEGULA_INFO) #(#key_parts)*;
            #(#key_metas)*
            let #stage = move || #name #turbofish::stage(#(::core::clone::Clone::clone(&#meta)),*);
            #krate::Launch::new(&__TEGULA_INFO, #key, [#(#krate::IntoArg::into_arg(#runtime)),*], #stage)
        }
    }
}

/// A local variable of the expansion, reported at `span`: no name that the user writes means it.
fn own(name: &str, span: Span) -> Ident {
    Ident::new(name, Span::mixed_site().located_at(span))
}

/// A name without `r#`.
fn plain_name(name: &Ident) -> String {
    let text = name.to_string();
    text.strip_prefix("r#").map(str::to_owned).unwrap_or(text)
}
