//! Every node of a parse tree, one behind the other, without a copy of the tree.
//!
//! Owns: [`walk`], where a node or a word stands ([`Step`]). Never: what a node means.
//!
//! The nodes' own serialization names all their fields, so that nothing in a tree can be left out here; a field of a
//! sort that nodes do not have today is an error.

use std::fmt::Error as Unknown;

use serde::Serialize;
use serde::ser::{Impossible, SerializeSeq, SerializeStruct, Serializer};

/// One step on the way from the root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Into a field, or into what a field of several kinds holds: `funcname`, `FuncCall`.
    Name(&'static str),
    /// Into a list.
    Item(usize),
}

/// Who looks.
pub(super) trait Look {
    /// Here a node begins ...
    fn node(&mut self, path: &[Step]);
    /// ... and ends.
    fn end(&mut self, path: &[Step]);
    /// A word, as fields hold it.
    fn word(&mut self, path: &[Step], word: &str);
    /// A number; also one of a few kinds, such as AND, OR and NOT.
    fn number(&mut self, _path: &[Step], _number: i32) {}
}

/// Show all of `tree`.
///
/// # Errors
/// It holds something that is not known.
pub(super) fn walk(tree: &impl Serialize, look: &mut impl Look) -> Result<(), Unknown> {
    tree.serialize(&mut Walk { path: Vec::new(), look })
}

struct Walk<'l, L> {
    path: Vec<Step>,
    look: &'l mut L,
}

impl<L: Look> Walk<'_, L> {
    fn step<T: Serialize + ?Sized>(&mut self, step: Step, value: &T) -> Result<(), Unknown> {
        self.path.push(step);
        let done = value.serialize(&mut *self);
        self.path.pop();
        done
    }
}

/// A list or a node that has begun.
struct Begun<'w, 'l, L> {
    walk: &'w mut Walk<'l, L>,
    items: usize,
}

impl<L: Look> SerializeSeq for Begun<'_, '_, L> {
    type Ok = ();
    type Error = Unknown;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Unknown> {
        let item = self.items;
        self.items += 1;
        self.walk.step(Step::Item(item), value)
    }

    fn end(self) -> Result<(), Unknown> {
        Ok(())
    }
}

impl<L: Look> SerializeStruct for Begun<'_, '_, L> {
    type Ok = ();
    type Error = Unknown;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        name: &'static str,
        value: &T,
    ) -> Result<(), Unknown> {
        self.walk.step(Step::Name(name), value)
    }

    fn end(self) -> Result<(), Unknown> {
        self.walk.look.end(&self.walk.path);
        Ok(())
    }
}

/// Values that say nothing here.
macro_rules! passed_over {
    ($($name:ident: $type:ty,)*) => {
        $(fn $name(self, _: $type) -> Result<(), Unknown> { Ok(()) })*
    };
}

impl<'w, 'l, L: Look> Serializer for &'w mut Walk<'l, L> {
    type Ok = ();
    type Error = Unknown;
    type SerializeSeq = Begun<'w, 'l, L>;
    type SerializeStruct = Begun<'w, 'l, L>;
    type SerializeTuple = Impossible<(), Unknown>;
    type SerializeTupleStruct = Impossible<(), Unknown>;
    type SerializeTupleVariant = Impossible<(), Unknown>;
    type SerializeMap = Impossible<(), Unknown>;
    type SerializeStructVariant = Impossible<(), Unknown>;

    passed_over! {
        serialize_bool: bool,
        serialize_i8: i8,
        serialize_i16: i16,
        serialize_i64: i64,
        serialize_u8: u8,
        serialize_u16: u16,
        serialize_u32: u32,
        serialize_u64: u64,
        serialize_f32: f32,
        serialize_f64: f64,
        serialize_char: char,
    }

    fn serialize_i32(self, number: i32) -> Result<(), Unknown> {
        self.look.number(&self.path, number);
        Ok(())
    }

    fn serialize_str(self, word: &str) -> Result<(), Unknown> {
        self.look.word(&self.path, word);
        Ok(())
    }

    fn serialize_none(self) -> Result<(), Unknown> {
        Ok(())
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Unknown> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        kind: &'static str,
        value: &T,
    ) -> Result<(), Unknown> {
        self.step(Step::Name(kind), value)
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Self::SerializeSeq, Unknown> {
        Ok(Begun { walk: self, items: 0 })
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Self::SerializeStruct, Unknown> {
        self.look.node(&self.path);
        Ok(Begun { walk: self, items: 0 })
    }

    fn serialize_bytes(self, _: &[u8]) -> Result<(), Unknown> {
        Err(Unknown)
    }

    fn serialize_unit(self) -> Result<(), Unknown> {
        Err(Unknown)
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<(), Unknown> {
        Err(Unknown)
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, _: &'static str) -> Result<(), Unknown> {
        Err(Unknown)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, _: &T) -> Result<(), Unknown> {
        Err(Unknown)
    }

    fn serialize_tuple(self, _: usize) -> Result<Self::SerializeTuple, Unknown> {
        Err(Unknown)
    }

    fn serialize_tuple_struct(
        self,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeTupleStruct, Unknown> {
        Err(Unknown)
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeTupleVariant, Unknown> {
        Err(Unknown)
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Self::SerializeMap, Unknown> {
        Err(Unknown)
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeStructVariant, Unknown> {
        Err(Unknown)
    }
}
