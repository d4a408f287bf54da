//! `#[derive(Carry)]`.

use proc_macro2::TokenStream;
use quote::{format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Data, DeriveInput, Error, Field, Index, Member, Path, Result, parse_quote};

/// Implements the trait for a struct, field by field.
pub fn derive(mut item: DeriveInput) -> Result<TokenStream> {
    let Data::Struct(data) = &item.data else {
        return Err(Error::new(
            item.ident.span(),
            "only a struct can be carried: which variant an enum is must be known while staging",
        ));
    };
    let krate: Path = parse_quote!(::tegula::__private);
    let mut visits = Vec::new();
    let mut bounds = Vec::new();
    for (index, field) in data.fields.iter().enumerate() {
        if is_skipped(field)? {
            continue;
        }
        let member = match &field.ident {
            Some(name) => Member::Named(name.clone()),
            None => Member::Unnamed(Index { index: index as u32, span: field.span() }),
        };
        let ty = &field.ty;
        visits.push(quote_spanned!(ty.span()=> #krate::staging::Carry::visit(&mut self.#member, __visitor);));
        // A field of generic type is carried if that type is; a concrete one is checked where it stands.
        if mentions_parameter(field, &item.generics) {
            bounds.push(quote_spanned!(ty.span()=> #ty: #krate::staging::Carry));
        }
    }
    if !bounds.is_empty() {
        let clause = item.generics.make_where_clause();
        for bound in bounds {
            clause.predicates.push(syn::parse2(bound)?);
        }
    }
    let name = &item.ident;
    let (impl_generics, ty_generics, where_clause) = item.generics.split_for_impl();
    let visitor = format_ident!("__visitor");
    Ok(quote! {
        #[automatically_derived]
        impl #impl_generics #krate::staging::Carry for #name #ty_generics #where_clause {
            fn visit(&mut self, #visitor: &mut dyn ::core::ops::FnMut(&mut #krate::Value)) {
                let _ = &#visitor;
                #(#visits)*
            }
        }
    })
}

/// Is the field marked `#[carry(skip)]`?
fn is_skipped(field: &Field) -> Result<bool> {
    let mut skipped = false;
    for attr in field.attrs.iter().filter(|a| a.path().is_ident("carry")) {
        attr.parse_nested_meta(|meta| {
            if !meta.path.is_ident("skip") {
                return Err(meta.error("the only option is `skip`"));
            }
            skipped = true;
            Ok(())
        })?;
    }
    Ok(skipped)
}

fn mentions_parameter(field: &Field, generics: &syn::Generics) -> bool {
    struct Finder<'a>(&'a syn::Generics, bool);
    impl<'ast> syn::visit::Visit<'ast> for Finder<'_> {
        fn visit_ident(&mut self, ident: &'ast proc_macro2::Ident) {
            self.1 |= self.0.type_params().any(|p| p.ident == *ident);
        }
    }
    let mut finder = Finder(generics, false);
    syn::visit::Visit::visit_type(&mut finder, &field.ty);
    finder.1
}
