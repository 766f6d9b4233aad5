//! Explanation of a search as text: query → facts → phrases → passages.

use std::io::{self, Write};

use waymark_index::{
    Evidence, GraphRank, GraphTrace, Hit, KagChunk, KagOptions, KagTrace, KagTriple, PathEdge, Query, SeedFact,
    SeedPhrase, TripleHit,
};

/// Writes the path from `query` to the results.
pub(super) fn print(query: &Query, evidence: &Evidence, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "query     {}", query.text)?;
    writeln!(out, "search    {}, snapshot {}", evidence.mode, evidence.snapshot)?;
    if let Some(walk) = &evidence.walk {
        print_walk(walk, out)?;
    }
    if let Some(association) = &evidence.association {
        print_association(association, out)?;
    }
    head("passages", out)?;
    for hit in &evidence.hits {
        print_hit(hit, out)?;
    }
    if !evidence.triples.is_empty() {
        head("triples", out)?;
    }
    for triple in &evidence.triples {
        let passages = triple.passages.join(", ");
        writeln!(out, "  {:>3}  {:.4}  {}  in {passages}", triple.rank, triple.score, statement(triple))?;
    }
    Ok(())
}

/// Formats a triple on one line.
pub(super) fn statement(triple: &TripleHit) -> String {
    format!("{} · {} · {}", triple.subject, triple.relation, triple.object)
}

fn head(name: &str, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "\n{name}")
}

fn print_walk(walk: &GraphTrace, out: &mut impl Write) -> io::Result<()> {
    let GraphTrace { variant, damping, passage_weight, .. } = walk;
    writeln!(out, "walk      {variant}, damping {damping}, weight of passages {passage_weight}")?;
    if walk.fallback {
        writeln!(out, "          no fact was kept: passages are ranked by similarity alone")?;
    }
    if walk.local {
        writeln!(out, "          local to the seeds in a large index; similarities scaled by a sample")?;
    }
    if !walk.fallback {
        writeln!(out, "          at most {:.1e} of the mass is missing", walk.missing)?;
    }
    head("facts: score, similarity to the query", out)?;
    for (fact, place) in walk.facts.iter().zip(1..) {
        let SeedFact { subject, relation, object, similarity, score, kept } = fact;
        let dropped = if *kept { "" } else { "  (dropped by the filter)" };
        writeln!(out, "  {place:>3}  {score:.4}  {similarity:.4}  {subject} · {relation} · {object}{dropped}")?;
    }
    head("phrases: weight in the reset, linking score, passages that name it", out)?;
    for (seed, place) in walk.phrases.iter().zip(1..) {
        let SeedPhrase { phrase, passages, linking, weight } = seed;
        writeln!(out, "  {place:>3}  {weight:.4}  {linking:.4}  {passages:>5}  {phrase}")?;
    }
    Ok(())
}

fn print_association(association: &KagTrace, out: &mut impl Write) -> io::Result<()> {
    let KagTrace { options, entities, chunks, triples } = association;
    let KagOptions { damping, threshold, iterations, .. } = options;
    writeln!(out, "walk      {iterations} steps, damping {damping}, triples relevant above {threshold}")?;
    head("entities: mass, most similar phrases", out)?;
    for entity in entities {
        let origin = if entity.given { "given" } else { "found in the query" };
        let phrases: Vec<String> =
            entity.phrases.iter().map(|found| format!("{} {:.4}", found.phrase, found.similarity)).collect();
        writeln!(out, "       {:.6}  {} ({origin}): {}", entity.mass, entity.name, phrases.join(", "))?;
    }
    head("passages in the graph: mass, relevance, similarity to the query", out)?;
    for chunk in chunks {
        let KagChunk { passage, similarity, relevance, mass, .. } = chunk;
        writeln!(out, "       {mass:.6}  {relevance:.4}  {similarity:.4}  {passage}")?;
    }
    head("triples in the graph: mass, relevance, similarity to the query", out)?;
    for triple in triples {
        let KagTriple { subject, relation, object, similarity, relevance, mass, .. } = triple;
        writeln!(out, "       {mass:.6}  {relevance:.4}  {similarity:.4}  {subject} · {relation} · {object}")?;
    }
    Ok(())
}

fn print_hit(hit: &Hit, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "  {:>3}  {}  {}", hit.rank, hit.passage.title, super::trace::route(hit))?;
    let Some(GraphRank { mass, reset, via, .. }) = &hit.path.graph else { return Ok(()) };
    writeln!(out, "       mass {mass:.6}, own weight in the reset {reset:.6}")?;
    if !via.is_empty() {
        let way: String = via.iter().map(|PathEdge { phrase, weight }| format!("{phrase} —{weight:.2}→ ")).collect();
        writeln!(out, "       via {way}here")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use waymark_index::{GraphVariant, HitPath, KeyEntity, LinkedPhrase, Mode, Passage};

    use super::*;

    #[test]
    fn the_whole_path_is_printed() {
        let fact = |object: &str, kept| SeedFact {
            subject: "mona lisa".into(),
            relation: "hangs in".into(),
            object: object.into(),
            similarity: 0.75,
            score: 1.0,
            kept,
        };
        let seed = SeedPhrase { phrase: "louvre".into(), passages: 2, linking: 1.0, weight: 0.5 };
        let walk = GraphTrace {
            variant: GraphVariant::RouteRag,
            damping: 0.5,
            passage_weight: 0.05,
            facts: vec![fact("louvre", true), fact("paris", false)],
            kept: vec![0],
            phrases: vec![seed],
            fallback: false,
            local: true,
            missing: 0.0025,
        };
        let via =
            vec![PathEdge { phrase: "louvre".into(), weight: 2.0 }, PathEdge { phrase: "paris".into(), weight: 1.0 }];
        let arrival = GraphRank { rank: 1, mass: 0.25, reset: 0.05, via };
        let hit = Hit {
            rank: 1,
            score: 0.25,
            passage: Passage { id: "p".into(), title: "Paris".into(), text: "…".into() },
            metadata: None,
            path: HitPath { graph: Some(arrival), ..HitPath::default() },
        };
        let evidence = Evidence { walk: Some(walk), ..Evidence::of(7, Mode::Graph, vec![hit]) };
        let mut out = Vec::new();
        print(&Query::new("Where?", Mode::Graph, 1), &evidence, &mut out).unwrap();
        let expected = "\
query     Where?
search    graph, snapshot 7
walk      route_rag, damping 0.5, weight of passages 0.05
          local to the seeds in a large index; similarities scaled by a sample
          at most 2.5e-3 of the mass is missing

facts: score, similarity to the query
    1  1.0000  0.7500  mona lisa · hangs in · louvre
    2  1.0000  0.7500  mona lisa · hangs in · paris  (dropped by the filter)

phrases: weight in the reset, linking score, passages that name it
    1  0.5000  1.0000      2  louvre

passages
    1  Paris  0.2500 · graph #1
       mass 0.250000, own weight in the reset 0.050000
       via louvre —2.00→ paris —1.00→ here
";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn an_association_is_printed() {
        let phrases = vec![LinkedPhrase { phrase: "louvre".into(), similarity: 0.5 }];
        let entity = KeyEntity { name: "mona lisa".into(), given: false, phrases, mass: 0.5 };
        let chunk =
            KagChunk { passage: "p1".into(), title: "louvre".into(), similarity: 0.25, relevance: 0.75, mass: 0.125 };
        let triple = KagTriple {
            subject: "mona lisa".into(),
            relation: "hangs in".into(),
            object: "louvre".into(),
            similarity: 0.5,
            relevance: 0.0,
            chunks: vec![0],
            mass: 0.25,
        };
        let association = KagTrace {
            options: KagOptions::default(),
            entities: vec![entity],
            chunks: vec![chunk],
            triples: vec![triple],
        };
        let mut out = Vec::new();
        print_association(&association, &mut out).unwrap();
        let expected = "\
walk      20 steps, damping 0.5, triples relevant above 0.5

entities: mass, most similar phrases
       0.500000  mona lisa (found in the query): louvre 0.5000

passages in the graph: mass, relevance, similarity to the query
       0.125000  0.7500  0.2500  p1

triples in the graph: mass, relevance, similarity to the query
       0.250000  0.0000  0.5000  mona lisa · hangs in · louvre
";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
