//! The texts of the sources that end up in a log line. Code that is built only for tests does not count.

use std::collections::BTreeSet;

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, ImplItemFn, ItemFn, ItemImpl, ItemMod, LitStr, Macro, Type};

const LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

/// Placeholders at the end of a line that may be empty.
const ADDITIONS: [&str; 2] = ["{left_out}", "{hint}"];

/// Texts that end up in a log line.
#[derive(Default)]
pub struct Messages {
    /// All of them.
    pub lines: Vec<Line>,
    /// Lines of the levels warn and error, [normalized]. Without those that only pass on another text.
    pub alarms: BTreeSet<String>,
    /// Texts of errors, normalized. A line may consist of several.
    pub parts: BTreeSet<String>,
}

#[derive(Debug)]
#[allow(dead_code)]
pub struct Line {
    file: String,
    text: String,
    /// It shows a `Debug` representation.
    pub is_debug: bool,
}

struct Reader<'a> {
    messages: &'a mut Messages,
    file: &'a str,
    errors: &'a [&'a str],
    functions: &'a [&'a str],
    /// Inside of a text of an error.
    is_error: bool,
}

impl Messages {
    /// Adds the texts of a file. `errors` are the types whose `Display` counts, and `functions` what else returns such a text.
    pub fn read(&mut self, file: &str, text: &str, errors: &[&str], functions: &[&str]) {
        let parsed = syn::parse_file(text).unwrap_or_else(|error| panic!("{file}: {error}"));
        Reader { messages: self, file, errors, functions, is_error: false }.visit_file(&parsed);
    }
}

/// Replaces each placeholder, `{...}` in a source and `<...>` in the runbook, by `<>`.
pub fn normalized(text: &str) -> String {
    let mut rest = ADDITIONS.iter().fold(text, |text, addition| text.trim_end_matches(addition));
    let mut result = String::new();
    while let Some(begin) = rest.find(['{', '<']) {
        let close = if rest[begin..].starts_with('{') { '}' } else { '>' };
        let Some(end) = rest[begin..].find(close) else { break };
        result.push_str(&rest[..begin]);
        result.push_str("<>");
        rest = &rest[begin + end + 1..];
    }
    result + rest
}

impl Reader<'_> {
    fn note(&mut self, text: String, is_debug: bool) {
        if self.is_error && text.contains(' ') {
            self.messages.parts.insert(normalized(&text));
        }
        let is_debug = is_debug || text.contains(":?}") || text.contains(":#?}");
        self.messages.lines.push(Line { file: self.file.to_owned(), text, is_debug });
    }

    fn in_error(&mut self, is_error: bool, inside: impl FnOnce(&mut Self)) {
        let outside = self.is_error;
        self.is_error |= is_error;
        inside(self);
        self.is_error = outside;
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item_mod(&mut self, node: &'ast ItemMod) {
        if !is_for_tests(&node.attrs) {
            visit::visit_item_mod(self, node);
        }
    }

    fn visit_item_impl(&mut self, node: &'ast ItemImpl) {
        let is_display = node
            .trait_
            .as_ref()
            .is_some_and(|path| path.0.segments.last().is_some_and(|segment| segment.ident == "Display"));
        let name = match &*node.self_ty {
            Type::Path(path) => path.path.segments.last().map(|segment| segment.ident.to_string()),
            _ => None,
        };
        let is_error = is_display && name.is_some_and(|name| self.errors.contains(&&*name));
        self.in_error(is_error, |reader| visit::visit_item_impl(reader, node));
    }

    fn visit_impl_item_fn(&mut self, node: &'ast ImplItemFn) {
        let is_error = self.functions.contains(&&*node.sig.ident.to_string());
        self.in_error(is_error, |reader| visit::visit_impl_item_fn(reader, node));
    }

    fn visit_item_fn(&mut self, node: &'ast ItemFn) {
        if !is_for_tests(&node.attrs) {
            let is_error = self.functions.contains(&&*node.sig.ident.to_string());
            self.in_error(is_error, |reader| visit::visit_item_fn(reader, node));
        }
    }

    fn visit_lit_str(&mut self, node: &'ast LitStr) {
        if self.is_error {
            self.note(node.value(), false);
        }
    }

    // A doc comment is an attribute.
    fn visit_attribute(&mut self, _: &'ast Attribute) {}

    fn visit_macro(&mut self, node: &'ast Macro) {
        let name = node.path.segments.last().map(|segment| segment.ident.to_string()).unwrap_or_default();
        let level = LEVELS.iter().position(|level| *level == name);
        let Some(text) = first_text(node.tokens.clone()) else { return };
        if level.is_some_and(|level| level < 2) && normalized(&text) != "<>" {
            self.messages.alarms.insert(normalized(&text));
        }
        if level.is_some() {
            self.note(text, has_question_mark(node.tokens.clone()));
        } else if self.is_error && !name.contains("assert") {
            self.note(text, false);
        }
    }
}

/// The format of a macro: its first text.
fn first_text(tokens: TokenStream) -> Option<String> {
    tokens.into_iter().find_map(|token| match token {
        TokenTree::Literal(literal) => {
            syn::parse_str::<LitStr>(&literal.to_string()).ok().map(|text| text.value())
        }
        _ => None,
    })
}

/// Whether a field of a line is recorded by its `Debug` representation.
fn has_question_mark(tokens: TokenStream) -> bool {
    tokens.into_iter().any(|token| matches!(token, TokenTree::Punct(punct) if punct.as_char() == '?'))
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().filter(|attribute| attribute.path().is_ident("cfg")).any(|attribute| {
        matches!(&attribute.meta, syn::Meta::List(list) if list.tokens.to_string().starts_with("test"))
    })
}
