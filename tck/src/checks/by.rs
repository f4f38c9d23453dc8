//! The contract memory. What is put is removed again, for it may be a disk that keeps it.

use crate::{
    case::{CALLS, Case, FRAME, hello, limits},
    check::{Check, Need, Stop, must},
    map,
    session::{Got, Session},
    value::Value,
};

const MEMORY: &[Need] = &[Need::Active, Need::Kind("memory")];
const STREAMED: &[Need] = &[Need::Active, Need::Kind("memory"), Need::Feature("stream")];
/// More than fits into any window, and few enough for a memory that thinks about each.
const MANY: usize = 3000;

/// One namespace of the memory that is tried, new for each check.
struct Space {
    name: String,
    ns: String,
}

impl Space {
    fn new(c: &mut Case<'_>) -> Self {
        let name = c.entries("memory").first().and_then(|entry| entry.str("name")).unwrap_or("");
        Self { name: name.to_owned(), ns: format!("tck-{:016x}", c.rng.u64(..)) }
    }

    /// Another namespace of the same memory.
    fn other(&self) -> Self {
        Self { name: self.name.clone(), ns: format!("{}-other", self.ns) }
    }

    fn body(&self) -> Value {
        map! {"name": self.name.clone(), "ns": self.ns.clone()}
    }

    /// Puts texts and returns their ids.
    fn put(&self, s: &mut Session, records: Vec<Value>) -> Result<Vec<String>, Stop> {
        let n = records.len();
        let id = s.call("memory.put", self.body().with("records", records));
        let end = s.end(id)?;
        s.is_ok(&end)?;
        let ids = end.value().strings("ids");
        s.same(&end, "how many ids it returns", &n, &ids.len())?;
        Ok(ids)
    }

    fn search(&self, s: &mut Session, query: &str, k: usize) -> Result<Vec<Value>, Stop> {
        let id = s.call("memory.search", self.body().with("query", query).with("k", k));
        found(s, id)
    }

    fn get(&self, s: &mut Session, ids: &[String]) -> Result<Vec<Value>, Stop> {
        let id = s.call("memory.get", self.body().with("ids", ids.to_vec()));
        found(s, id)
    }

    /// Deletes, and that so many were there.
    fn delete(&self, s: &mut Session, ids: &[String], due: i128) -> Result<(), Stop> {
        let id = s.call("memory.delete", self.body().with("ids", ids.to_vec()));
        let end = s.end(id)?;
        s.is_ok(&end)?;
        s.same(&end, "n", &due, &end.value().int("n").unwrap_or(-1))
    }
}

/// The records of a search or get, which come as items or, without streams, in the result.
fn found(s: &mut Session, id: u32) -> Result<Vec<Value>, Stop> {
    let (items, end) = s.collect(id)?;
    s.is_ok(&end)?;
    let result = end.value();
    let records: Vec<Value> = if s.uses("stream") {
        items.iter().map(Got::value).collect()
    } else {
        result.list("records").to_vec()
    };
    let n = i128::try_from(records.len()).unwrap_or(-1);
    s.same(&end, "n", &n, &result.int("n").unwrap_or(-1))?;
    Ok(records)
}

/// A record to put.
fn record(text: &str) -> Value {
    map! {"text": text}
}

fn texts(records: &[Value]) -> Vec<&str> {
    records.iter().filter_map(|record| record.str("text")).collect()
}

/// Tries to put, to find, to get and to replace.
fn keeps(s: &mut Session, space: &Space) -> Result<(), Stop> {
    let given = record("tck tea in a pot").with("id", "tck-given");
    let ids = space.put(s, vec![record("tck milk"), given.clone()])?;
    s.holds(ids[1] == "tck-given" && ids[0] != ids[1], "the id that was given", ids.join(" "))?;
    let records = space.search(s, "tck tea in a pot", 10)?;
    let is_given = |it: &Value| {
        it.str("id") == Some("tck-given") && it.str("text") == Some("tck tea in a pot")
    };
    s.holds(records.iter().any(is_given), "the record that was put", records.len())?;
    space.put(s, vec![given.with("text", "tck no more tea")])?;
    let records = space.get(s, &ids)?;
    s.holds(
        texts(&records) == ["tck milk", "tck no more tea"],
        "the two records, the second replaced",
        texts(&records).join("; "),
    )?;
    space.delete(s, &ids, 2)
}

pub(super) const CHECKS: &[Check] = &[
    must(
        "BY-01",
        "finds what was put, and replaces it",
        &["R-ME-02", "R-ME-03", "R-ME-04", "R-ME-07"],
        MEMORY,
        |c| {
            let space = Space::new(c);
            let mut s = c.active()?;
            keeps(&mut s, &space)?;
            // The same where results cannot come as items.
            let features = crate::list!["async", "reverse"];
            let mut s = c.active_with(&hello().with("features", features))?;
            keeps(&mut s, &space)
        },
    ),
    must("BY-02", "keeps namespaces apart", &["R-ME-01", "R-ME-09"], MEMORY, |c| {
        let space = Space::new(c);
        let other = space.other();
        let mut s = c.active()?;
        let ids = space.put(&mut s, vec![record("tck one"), record("tck two")])?;
        let seen = other.search(&mut s, "tck", 10)?;
        s.holds(seen.is_empty(), "nothing in another namespace", texts(&seen).join("; "))?;
        let seen = other.get(&mut s, &ids)?;
        s.holds(seen.is_empty(), "nothing in another namespace", texts(&seen).join("; "))?;
        other.delete(&mut s, &ids, 0)?;
        space.delete(&mut s, &ids, 2)
    }),
    must("BY-03", "deletes once what is deleted twice", &["R-ME-06"], MEMORY, |c| {
        let space = Space::new(c);
        let mut s = c.active()?;
        let ids = space.put(&mut s, vec![record("tck one"), record("tck two")])?;
        space.delete(&mut s, &ids[..1], 1)?;
        space.delete(&mut s, &ids[..1], 0)?;
        let seen = space.get(&mut s, &ids)?;
        s.holds(texts(&seen) == ["tck two"], "the other record", texts(&seen).join("; "))?;
        space.delete(&mut s, &ids, 1)
    }),
    must(
        "BY-04",
        "finds no more than it is asked for, the best first",
        &["R-ME-05"],
        MEMORY,
        |c| {
            let space = Space::new(c);
            let mut s = c.active()?;
            let longer = |n: usize| record(&format!("tck tea{}", " and more".repeat(5 - n)));
            let ids = space.put(&mut s, (0..5).map(longer).collect())?;
            let found = space.search(&mut s, "tck tea", 3)?;
            s.holds(found.len() <= 3, "at most 3 records", found.len())?;
            let scores: Vec<f64> = found
                .iter()
                .filter_map(|it| it.get("score").and_then(|score| score.to_json().as_f64()))
                .collect();
            let told = || format!("{scores:?}");
            let range =
                scores.len() == found.len() && scores.iter().all(|it| (0.0..=1.0).contains(it));
            s.holds(range, "a score from 0 to 1 with each record", told())?;
            let falls = scores.windows(2).all(|pair| pair[0] >= pair[1]);
            s.holds(falls, "scores that do not increase", told())?;
            space.delete(&mut s, &ids, 5)
        },
    ),
    must(
        "BY-05",
        "gives all that was asked for, whatever the window",
        &["R-ME-06"],
        STREAMED,
        |c| {
            let space = Space::new(c);
            let mut s = c.active_with(&hello().with("limits", limits(FRAME, 16_384, CALLS)))?;
            let mut ids = Vec::new();
            for _ in 0..MANY / 500 {
                ids.extend(space.put(&mut s, vec![record("tck one of many"); 500])?);
            }
            let mut seen: Vec<String> = space
                .get(&mut s, &ids)?
                .iter()
                .filter_map(|it| it.str("id").map(str::to_owned))
                .collect();
            seen.sort();
            let mut due = ids.clone();
            due.sort();
            s.holds(seen == due, &format!("each of {MANY} records once"), seen.len())?;
            space.delete(&mut s, &ids, MANY as i128)
        },
    ),
    must("BY-06", "keeps records for as long as it says", &["R-ME-08"], MEMORY, |c| {
        let space = Space::new(c);
        let entry = c.entries("memory").first().and_then(|entry| entry.str("keeps"));
        let keeps = entry.unwrap_or("activation");
        let mut s = c.active()?;
        let ids = space.put(&mut s, vec![record("tck one")])?;
        s.deactivate()?;
        let body = c.activation(&mut s);
        let end = s.activate(body)?;
        s.is_ok(&end)?;
        let seen = space.get(&mut s, &ids)?.len();
        let due = usize::from(keeps != "activation");
        s.holds(seen == due, &format!("{due} records, for it keeps them for {keeps}"), seen)?;
        let mut s = c.active()?;
        let due = usize::from(keeps == "disk");
        let seen = space.get(&mut s, &ids)?.len();
        s.holds(seen == due, &format!("{due} records in a new process"), seen)?;
        space.delete(&mut s, &ids, due as i128)
    }),
];
