//! An inverted index in memory, ranked by BM25.

use std::collections::HashMap;

/// Which documents have which words.
#[derive(Default)]
pub(crate) struct Index {
    documents: Vec<Document>,
    /// Word to documents, in order, and how often it stands in each.
    postings: HashMap<String, Vec<(u32, u32)>>,
    words: u64,
}

struct Document {
    name: String,
    words: u32,
}

/// One document that matches.
#[derive(Debug, PartialEq)]
pub(crate) struct Hit<'a> {
    pub(crate) name: &'a str,
    pub(crate) score: f64,
}

/// The usual constants of BM25: how soon repetition stops to count, and how much
/// a long document is held back.
const SATURATION: f64 = 1.2;
const LENGTH: f64 = 0.75;

impl Index {
    pub(crate) fn add(&mut self, name: String, text: &str) {
        let id = self.documents.len() as u32;
        let mut count = 0;
        for word in words(text) {
            count += 1;
            let places = self.postings.entry(word).or_default();
            match places.last_mut() {
                Some((last, times)) if *last == id => *times += 1,
                _ => places.push((id, 1)),
            }
        }
        self.words += u64::from(count);
        self.documents.push(Document { name, words: count });
    }

    pub(crate) fn len(&self) -> usize {
        self.documents.len()
    }

    /// The documents that have at least one of the words of `query`, best first.
    pub(crate) fn search(&self, query: &str, limit: usize) -> Vec<Hit<'_>> {
        let count = self.documents.len() as f64;
        let average = self.words as f64 / count.max(1.0);
        let mut scores: HashMap<u32, f64> = HashMap::new();
        let mut asked: Vec<String> = words(query).collect();
        asked.sort();
        asked.dedup();
        for places in asked.iter().filter_map(|word| self.postings.get(word)) {
            let found = places.len() as f64;
            let rarity = ((count - found + 0.5) / (found + 0.5) + 1.0).ln();
            for &(id, times) in places {
                let times = f64::from(times);
                let length = f64::from(self.documents[id as usize].words) / average.max(1.0);
                let weight = times + SATURATION * (1.0 - LENGTH + LENGTH * length);
                *scores.entry(id).or_default() += rarity * times * (SATURATION + 1.0) / weight;
            }
        }
        let hit = |(id, score)| Hit { name: &self.documents[id as usize].name, score };
        let mut hits: Vec<Hit<'_>> = scores.into_iter().map(hit).collect();
        hits.sort_by(|a, b| b.score.total_cmp(&a.score).then_with(|| a.name.cmp(b.name)));
        hits.truncate(limit);
        hits
    }
}

/// The words of a text: letters and digits in a row, in lower case.
pub(crate) fn words(text: &str) -> impl Iterator<Item = String> {
    let parts = text.split(|c: char| !c.is_alphanumeric());
    parts.filter(|part| !part.is_empty()).map(str::to_lowercase)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(documents: &[(&str, &str)]) -> Index {
        let mut index = Index::default();
        documents.iter().for_each(|(name, text)| index.add((*name).into(), text));
        index
    }

    fn names<'a>(hits: &[Hit<'a>]) -> Vec<&'a str> {
        hits.iter().map(|hit| hit.name).collect()
    }

    #[test]
    fn rare_words_and_short_documents_weigh_more() {
        let index = index(&[
            ("common", "tea tea tea and more tea"),
            ("rare", "tea with bergamot"),
            ("long", &format!("bergamot {}", "and other words ".repeat(50))),
            ("none", "coffee"),
        ]);
        assert_eq!(names(&index.search("tea bergamot", 9)), ["rare", "common", "long"]);
        assert_eq!(names(&index.search("bergamot", 9)), ["rare", "long"]);
        assert_eq!(names(&index.search("bergamot", 1)), ["rare"]);
        assert!(index.search("cocoa", 9).is_empty());
        assert!(index.search("", 9).is_empty());
        assert!(Index::default().search("tea", 9).is_empty());
    }

    #[test]
    fn words_are_what_people_take_for_words() {
        let found: Vec<_> = words("Über-Größe: 42 x_y, naïve…").collect();
        assert_eq!(found, ["über", "größe", "42", "x", "y", "naïve"]);
    }
}
