//! What a JSON Schema lets a value be, as far as a person's typing needs it.
//!
//! This view is generous: it gathers every alternative and leaves the verdict to
//! the real check, which every call goes through anyway.

use serde_json::{Map, Value};

/// How far references and alternatives are followed; a schema may refer to itself.
const DEPTH_MAX: usize = 8;
/// How many sub-schemas may describe one value; more are not looked at.
const GATHERED_MAX: usize = 1000;

/// One place of a schema: all the sub-schemas that may describe the value there.
#[derive(Clone, Debug)]
pub(crate) struct Shape<'a> {
    root: &'a Value,
    any: Vec<&'a Map<String, Value>>,
}

/// The JSON types that a value may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Kinds {
    pub(crate) text: bool,
    pub(crate) integer: bool,
    pub(crate) number: bool,
    pub(crate) boolean: bool,
    pub(crate) list: bool,
    pub(crate) object: bool,
}

impl Kinds {
    /// Nothing is said, so anything goes.
    pub(crate) fn is_open(self) -> bool {
        self == Self::default()
    }
}

impl<'a> Shape<'a> {
    /// The whole schema.
    pub(crate) fn of(root: &'a Value) -> Self {
        let mut any = Vec::new();
        gather(root, root, DEPTH_MAX, &mut any);
        Self { root, any }
    }

    fn at(&self, schemas: impl IntoIterator<Item = &'a Value>) -> Self {
        let mut any = Vec::new();
        schemas.into_iter().for_each(|it| gather(self.root, it, DEPTH_MAX, &mut any));
        Self { root: self.root, any }
    }

    fn all<'s>(&'s self, keyword: &'s str) -> impl Iterator<Item = &'a Value> + 's {
        self.any.iter().filter_map(move |schema| schema.get(keyword))
    }

    fn tables<'s>(&'s self, keyword: &'s str) -> impl Iterator<Item = &'a Map<String, Value>> + 's {
        self.all(keyword).filter_map(Value::as_object)
    }

    /// What it says of one property: `None` if it names no such property.
    pub(crate) fn property(&self, name: &str) -> Option<Self> {
        let found: Vec<&Value> =
            self.tables("properties").filter_map(|table| table.get(name)).collect();
        (!found.is_empty()).then(|| self.at(found))
    }

    /// What it says of properties that it does not name; `None` if there should be
    /// none. A schema that lists properties and says nothing of others means, to a
    /// person who types a key, that the key is wrong.
    pub(crate) fn others(&self) -> Option<Self> {
        let explicit: Vec<&Value> =
            self.all("additionalProperties").filter(|it| **it != Value::Bool(false)).collect();
        let is_patterned = self.all("patternProperties").next().is_some();
        let is_closed = self.all("additionalProperties").any(|it| *it == Value::Bool(false));
        let lists = self.all("properties").next().is_some();
        match (explicit.is_empty(), is_patterned || !(is_closed || lists)) {
            (false, _) => Some(self.at(explicit)),
            (true, true) => Some(self.at([])),
            (true, false) => None,
        }
    }

    /// The names of the properties, as the schema orders them.
    pub(crate) fn names(&self) -> Vec<&'a str> {
        let mut names = Vec::new();
        for name in self.tables("properties").flat_map(Map::keys) {
            if !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
        names
    }

    /// Whether a property must be there.
    pub(crate) fn is_required(&self, name: &str) -> bool {
        let lists = self.all("required").filter_map(Value::as_array).flatten();
        lists.into_iter().any(|it| it == name)
    }

    /// What the item at a place of a list is.
    pub(crate) fn item(&self, at: usize) -> Self {
        let fixed = self.all("prefixItems").filter_map(|it| it.get(at));
        let fixed: Vec<&Value> = fixed.collect();
        if fixed.is_empty() { self.at(self.all("items")) } else { self.at(fixed) }
    }

    /// The values it is limited to, if it is.
    pub(crate) fn choices(&self) -> Vec<&'a Value> {
        let listed = self.all("enum").filter_map(Value::as_array).flatten();
        listed.chain(self.all("const")).collect()
    }

    /// Whether an alternative allows more than the listed values.
    pub(crate) fn is_open_beside_choices(&self) -> bool {
        let types = |schema: &&&Map<String, Value>| {
            schema.contains_key("type")
                && !schema.contains_key("enum")
                && !schema.contains_key("const")
        };
        let null = |schema: &&Map<String, Value>| schema["type"] == "null";
        self.any.iter().filter(types).any(|schema| !null(schema))
    }

    /// A sentence about it.
    pub(crate) fn description(&self) -> Option<&'a str> {
        self.all("description").find_map(Value::as_str)
    }

    /// What is taken if nothing is given.
    pub(crate) fn default(&self) -> Option<&'a Value> {
        self.all("default").find(|it| !it.is_null())
    }

    /// The JSON types a value may have besides the [choices](Self::choices).
    pub(crate) fn kinds(&self) -> Kinds {
        let mut kinds = Kinds::default();
        let mut add = |word: &str| match word {
            "string" => kinds.text = true,
            "integer" => kinds.integer = true,
            "number" => kinds.number = true,
            "boolean" => kinds.boolean = true,
            "array" => kinds.list = true,
            "object" => kinds.object = true,
            _ => {}
        };
        for said in self.all("type") {
            match said {
                Value::String(word) => add(word),
                Value::Array(words) => words.iter().filter_map(Value::as_str).for_each(&mut add),
                _ => {}
            }
        }
        if self.all("type").next().is_none() {
            self.tables("properties").for_each(|_| add("object"));
            self.all("items").for_each(|_| add("array"));
        }
        kinds
    }
}

fn gather<'a>(
    root: &'a Value,
    schema: &'a Value,
    depth: usize,
    out: &mut Vec<&'a Map<String, Value>>,
) {
    let (Some(table), Some(depth)) = (schema.as_object(), depth.checked_sub(1)) else { return };
    if GATHERED_MAX <= out.len() {
        return;
    }
    out.push(table);
    let target = table.get("$ref").and_then(Value::as_str).and_then(|it| it.strip_prefix('#'));
    if let Some(target) = target.and_then(|pointer| root.pointer(pointer)) {
        gather(root, target, depth, out);
    }
    let groups = ["allOf", "anyOf", "oneOf"].into_iter().filter_map(|it| table.get(it)?.as_array());
    groups.flatten().for_each(|it| gather(root, it, depth, out));
}
