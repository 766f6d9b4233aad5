//! Metrics of ranked lists with known relevant items.

/// Scores of one ranked list.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RankingScore {
    /// Recall at each cutoff.
    pub(super) recall: Vec<f64>,
    /// For each cutoff, `true` if all relevant items stand before it.
    pub(super) all: Vec<bool>,
    /// Reciprocal rank of the first relevant item; 0 if none is in the list.
    pub(super) reciprocal: f64,
}

impl RankingScore {
    /// Scores the results of `search` at the deepest of `cuts`; if the list `depends` on the number of results
    /// requested, searches once per cutoff.
    pub(super) fn searched<E>(
        relevant: &[String],
        cuts: &[usize],
        depends: bool,
        mut search: impl FnMut(usize) -> Result<Vec<String>, E>,
    ) -> Result<RankingScore, E> {
        let Some((&deepest, smaller)) = cuts.split_last() else { return Ok(RankingScore::of(&[], relevant, cuts)) };
        let mut score = |cut, cuts: &[usize]| {
            let found = search(cut)?;
            Ok(RankingScore::of(&found.iter().map(String::as_str).collect::<Vec<_>>(), relevant, cuts))
        };
        if !depends {
            return score(deepest, cuts);
        }
        let smaller = smaller.iter().map(|&cut| score(cut, &[cut])).collect::<Result<Vec<_>, E>>()?;
        let last = score(deepest, &[deepest])?;
        let each = || smaller.iter().chain([&last]);
        let recall = each().flat_map(|score| score.recall.clone()).collect();
        let all = each().flat_map(|score| score.all.clone()).collect();
        Ok(RankingScore { recall, all, reciprocal: last.reciprocal })
    }

    /// Scores `found`, best first and without duplicates, against `relevant`, which must be nonempty and without
    /// duplicates. `cuts` are lengths of the list.
    pub(super) fn of(found: &[&str], relevant: &[String], cuts: &[usize]) -> RankingScore {
        let is_relevant = |id: &&str| relevant.iter().any(|item| item == id);
        let places: Vec<usize> =
            found.iter().zip(1..).filter(|(id, _)| is_relevant(id)).map(|(_, place)| place).collect();
        let within = |cut: usize| places.iter().filter(|&&place| place <= cut).count();
        RankingScore {
            recall: cuts.iter().map(|&cut| within(cut) as f64 / relevant.len() as f64).collect(),
            all: cuts.iter().map(|&cut| within(cut) == relevant.len()).collect(),
            reciprocal: places.first().map_or(0.0, |&place| 1.0 / place as f64),
        }
    }
}

/// Means of many [`RankingScore`]s.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct MeanScore {
    /// Mean recall at each cutoff.
    pub(super) recall: Vec<f64>,
    /// For each cutoff, the share of lists with all relevant items before it.
    pub(super) all: Vec<f64>,
    /// Mean reciprocal rank.
    pub(super) mrr: f64,
}

impl MeanScore {
    /// Averages `scores` over `cuts` cutoffs; zeros if there are no scores.
    pub(super) fn of(scores: &[RankingScore], cuts: usize) -> MeanScore {
        let count = scores.len().max(1) as f64;
        let mean = |value: &dyn Fn(&RankingScore) -> f64| scores.iter().map(value).sum::<f64>() / count;
        MeanScore {
            recall: (0..cuts).map(|cut| mean(&|score| score.recall[cut])).collect(),
            all: (0..cuts).map(|cut| mean(&|score| f64::from(u8::from(score.all[cut])))).collect(),
            mrr: mean(&|score| score.reciprocal),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn score(found: &[&str], relevant: &[&str]) -> RankingScore {
        let relevant: Vec<String> = relevant.iter().map(|&id| id.to_owned()).collect();
        RankingScore::of(found, &relevant, &[1, 2, 5])
    }

    #[test]
    fn lists_that_depend_on_their_length_are_searched_for_each() {
        // The relevant passage comes first only if a single passage is requested.
        let search = |k: usize| -> Result<Vec<String>, ()> {
            let list: &[&str] = if k == 1 { &["a"] } else { &["x", "y", "a", "b", "z"] };
            Ok(list.iter().take(k).map(|&id| id.to_owned()).collect())
        };
        let relevant = ["a".to_owned(), "b".to_owned()];
        let searched =
            |depends| RankingScore::searched(&relevant, &[1, 2, 5], depends, search).map(|score| score.recall);
        assert_eq!(searched(true), Ok(vec![0.5, 0.0, 1.0]));
        assert_eq!(searched(false), Ok(vec![0.0, 0.0, 1.0]));
        let reciprocal = RankingScore::searched(&relevant, &[1, 2, 5], true, search).map(|score| score.reciprocal);
        assert_eq!(reciprocal, Ok(1.0 / 3.0));
    }

    #[test]
    fn by_hand() {
        let both = score(&["x", "a", "b", "y", "z"], &["a", "b"]);
        assert_eq!(both, RankingScore { recall: vec![0.0, 0.5, 1.0], all: vec![false, false, true], reciprocal: 0.5 });
        let first = score(&["a", "x"], &["a", "b", "c", "d"]);
        assert_eq!(first, RankingScore { recall: vec![0.25, 0.25, 0.25], all: vec![false; 3], reciprocal: 1.0 });
        let none = score(&["x", "y"], &["a"]);
        assert_eq!(none, RankingScore { recall: vec![0.0; 3], all: vec![false; 3], reciprocal: 0.0 });
        assert_eq!(score(&[], &["a"]), none);

        let mean = MeanScore::of(&[both, first, none], 3);
        assert_eq!(mean.recall, [0.25 / 3.0, 0.25, 1.25 / 3.0]);
        assert_eq!(mean.all, [0.0, 0.0, 1.0 / 3.0]);
        assert_eq!(mean.mrr, 0.5);
        assert_eq!(MeanScore::of(&[], 1), MeanScore { recall: vec![0.0], all: vec![0.0], mrr: 0.0 });
    }
}
