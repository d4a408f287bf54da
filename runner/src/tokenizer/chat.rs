//! Chat templates: Jinja, as model files carry them.
//!
//! Set up as Hugging Face's `apply_chat_template` does it (trimmed blocks, Python's string methods, `raise_exception`). A template is a program by
//! a stranger: it can reach nothing but its messages, and its steps are limited.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, ErrorKind, Value, context};
use serde::{Deserialize, Serialize};

use crate::error::{Fault, one_line};
use crate::isolate::isolated;

/// Steps that a template may take; real ones take a few hundred a message.
const FUEL: u64 = 1_000_000;
/// Bytes that a template may have; long ones have 20 000. Its length bounds how deeply it is nested, and that the stack which parsing it takes.
const LONGEST: usize = 64 << 10;

/// One turn of a chat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// What was said.
    pub content: String,
}

impl Message {
    /// A turn.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Message {
        Message { role: role.into(), content: content.into() }
    }
}

/// A template and the tokens that it may name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatTemplate {
    /// Jinja.
    pub source: String,
    /// The text of the token that begins a sequence; may be empty.
    pub bos: String,
    /// The text of the token that ends a sequence; may be empty.
    pub eos: String,
}

impl ChatTemplate {
    /// The chat as text, up to where the assistant's answer begins.
    ///
    /// # Errors
    /// If the template is wrong, refuses the messages, or is or takes too long.
    pub fn render(&self, messages: &[Message]) -> Result<String, Fault> {
        const FIELD: &str = "the chat template";
        if self.source.len() > LONGEST {
            return Err(Fault::new(FIELD, format!("has {} bytes, more than {LONGEST}", self.source.len())));
        }
        isolated(FIELD, || self.render_here(messages))?
    }

    fn render_here(&self, messages: &[Message]) -> Result<String, Fault> {
        let fault =
            |error: minijinja::Error| Fault::new("the chat template", one_line(&error.to_string(), 300));
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(fault)?);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |message: String| -> Result<String, minijinja::Error> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
        });
        let context = context! {
            messages => Value::from(Serde(messages)),
            add_generation_prompt => true,
            bos_token => self.bos.as_str(),
            eos_token => self.eos.as_str(),
        };
        environment.render_str(&self.source, context).map_err(fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(source: &str) -> ChatTemplate {
        ChatTemplate { source: source.into(), bos: "<s>".into(), eos: "</s>".into() }
    }

    #[test]
    fn templates_render_as_in_python() {
        let source = "{{ bos_token }}{% for m in messages %}\n  {% if m['role'] == 'user' %}\n[{{ m.content.strip() }}]\n  {% endif %}\n\
                      {% endfor %}\n{% if add_generation_prompt %}>{% endif %}";
        let text = template(source).render(&[Message::new("user", " hi ")]).unwrap();
        assert_eq!(text, "<s>[hi]\n>");
    }

    #[test]
    fn a_template_can_refuse_and_cannot_run_forever() {
        let refused = template("{{ raise_exception('roles must alternate') }}").render(&[]).unwrap_err();
        assert!(refused.to_string().contains("roles must alternate"), "{refused}");
        let endless =
            "{% for i in range(9999) %}{% for j in range(9999) %}{% set x = j %}{% endfor %}{% endfor %}";
        assert!(template(endless).render(&[]).is_err());
        let long = template(&" ".repeat(LONGEST + 1)).render(&[]).unwrap_err();
        assert!(long.problem.contains("more than"), "{long}");
        assert!(template("{% for").render(&[]).unwrap_err().field.contains("template"));
    }

    /// minijinja limits how deeply parentheses are nested, but neither prefixes nor chains.
    #[test]
    fn nesting_does_not_overflow_the_stack() {
        let nested = |start: &str, piece: &str, end: &str| {
            let source = format!("{start}{}{end}", piece.repeat((LONGEST - 100) / piece.len()));
            let _ = template(&source).render(&[]);
        };
        nested("{{ ", "-", "1 }}");
        nested("{{ ", "not ", "1 }}");
        nested("{{ 1", "+1", " }}");
        nested("{{ a", ".a", " }}");
        nested("{{ a", "|e", " }}");
        nested("{{ ", "(", " }}");
        let wrapped = "{% set n = namespace(x=[]) %}{% for i in range(9999) %}{% for j in range(99) %}{% set n.x = [n.x] %}{% endfor %}\
                       {% endfor %}{{ n.x }}";
        assert!(template(wrapped).render(&[]).is_err());
    }
}
