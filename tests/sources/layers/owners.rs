//! `Engine` and `Core` own all parts of the queue and of the server. A file with an `impl` of one can touch every part, so there
//! are few.

use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};
use syn::{ItemImpl, ItemMod, Type};

use super::read;
use super::source::{SRC, files, is_test_only, relative};

/// An owner, and the most files that may have methods of it.
const OWNERS: [(&str, usize); 2] = [("Engine", 6), ("Core", 16)];

/// Finds methods of one type.
struct Methods<'a> {
    owner: &'a str,
    has_some: bool,
}

impl<'ast> Visit<'ast> for Methods<'_> {
    fn visit_item_mod(&mut self, node: &'ast ItemMod) {
        if !is_test_only(&node.attrs) {
            visit::visit_item_mod(self, node);
        }
    }

    fn visit_item_impl(&mut self, node: &'ast ItemImpl) {
        let is_of_owner = match &*node.self_ty {
            Type::Path(of) => of.path.segments.last().is_some_and(|last| last.ident == self.owner),
            _ => false,
        };
        self.has_some |= is_of_owner && node.trait_.is_none() && !is_test_only(&node.attrs);
    }
}

fn has_methods(text: &str, owner: &str) -> bool {
    let mut methods = Methods { owner, has_some: false };
    methods.visit_file(&syn::parse_file(text).expect("it is Rust"));
    methods.has_some
}

#[test]
fn few_files_reach_every_part() {
    let all = files(Path::new(SRC));
    for (owner, files_max) in OWNERS {
        let found: Vec<PathBuf> =
            all.iter().filter(|file| has_methods(&read(file), owner)).map(|file| relative(file)).collect();
        assert!(!found.is_empty(), "{owner} has methods");
        assert!(
            found.len() <= files_max,
            "{} files have an `impl {owner}`, and {files_max} may: lend the part what it touches, as the methods of other parts do\n\
             {found:#?}",
            found.len()
        );
    }
}

#[test]
fn methods_are_found_however_the_type_is_named() {
    for text in [
        "impl Engine { fn f() {} }",
        "impl super::Engine { fn f() {} }",
        "mod inner { impl crate::queue::Engine { fn f() {} } }",
    ] {
        assert!(has_methods(text, "Engine"), "{text}");
    }
    for text in [
        "impl Default for Engine { fn default() -> Self { todo!() } }",
        "impl EngineStats { fn f(engine: &Engine) {} }",
        "#[cfg(test)] mod tests { impl Engine { fn f() {} } }",
    ] {
        assert!(!has_methods(text, "Engine"), "{text}");
    }
}
