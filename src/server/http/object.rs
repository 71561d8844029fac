//! JSON objects, written member by member.

use std::mem;

use serde::Serialize;

/// An object at the end of a response.
pub(super) struct Object<'a> {
    out: &'a mut Vec<u8>,
    /// What stands before the next member.
    separator: u8,
}

impl Object<'_> {
    /// Appends an object with the members that `write` writes.
    pub fn append(out: &mut Vec<u8>, write: impl FnOnce(&mut Object<'_>)) {
        let mut object = Object { out, separator: b'{' };
        write(&mut object);
        if object.separator == b'{' {
            object.out.push(b'{');
        }
        object.out.push(b'}');
    }

    fn name(&mut self, name: &str) -> &mut Vec<u8> {
        self.out.push(mem::replace(&mut self.separator, b','));
        to_json(name, self.out);
        self.out.push(b':');
        self.out
    }

    pub fn member(&mut self, name: &str, value: impl Serialize) {
        to_json(value, self.name(name));
    }

    /// A member that is left out if there is no value.
    pub fn if_some(&mut self, name: &str, value: Option<impl Serialize>) {
        if let Some(value) = value {
            self.member(name, value);
        }
    }

    /// A member that is an object.
    pub fn object(&mut self, name: &str, write: impl FnOnce(&mut Object<'_>)) {
        Object::append(self.name(name), write);
    }

    /// A member that is an object, or null if there is no value to write it from.
    pub fn object_or_null<T>(
        &mut self,
        name: &str,
        value: Option<T>,
        write: impl FnOnce(&mut Object<'_>, T),
    ) {
        match value {
            Some(value) => self.object(name, |object| write(object, value)),
            None => self.member(name, ()),
        }
    }

    /// A member that is a list of objects.
    // Bounded by its caller: what one response has.
    pub fn objects<T>(
        &mut self,
        name: &str,
        values: impl IntoIterator<Item = T>,
        mut write: impl FnMut(&mut Object<'_>, T),
    ) {
        let out = self.name(name);
        let mut separator = b'[';
        for value in values {
            out.push(mem::replace(&mut separator, b','));
            Object::append(out, |object| write(object, value));
        }
        out.extend_from_slice(if separator == b'[' { b"[]" } else { b"]" });
    }
}

/// Returns an object with the members that `write` writes.
pub(super) fn json(write: impl FnOnce(&mut Object<'_>)) -> Vec<u8> {
    let mut out = Vec::new();
    Object::append(&mut out, write);
    out
}

fn to_json(value: impl Serialize, out: &mut Vec<u8>) {
    serde_json::to_writer(out, &value).expect("plain data can be rendered");
}
