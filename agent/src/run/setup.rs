//! Properties of an episode that do not change while it runs.

use std::sync::Arc;

use waymark_engine::{Generate, StopSet};
use waymark_index::Mode;

use crate::action::PolicySearch;
use crate::answer_filter::AnswerFilter;
use crate::episode::EpisodeSettings;
use crate::guide::{AllowedActions, Guide};
use crate::loop_rules::LoopRules;
use crate::options::TurnEnds;
use crate::policy::Policy;
use crate::protocol::{Injected, Protocol, ReadingRule};
use crate::segment::SegmentKind;
use crate::text_codec::TextCodec;
use crate::tool_call::TOOL_TAGS;
use crate::trajectory::SearchRecord;

use super::budget_tracker::{BudgetTracker, Reserves};
use super::step::GenerationParams;

/// Minimum number of tokens of a guided turn; a shorter one has no room for text.
const LEAST_GUIDED: usize = 8;

/// Fixed properties of an episode.
#[derive(Debug)]
pub(super) struct EpisodeSetup {
    pub(super) codec: TextCodec,
    pub(super) protocol: Arc<dyn Protocol>,
    pub(super) rules: &'static dyn LoopRules,
    pub(super) settings: Arc<EpisodeSettings>,
    /// Name of the policy.
    pub(super) model: String,
    pub(super) question: String,
    /// Retrieval modes that the index offers to guided turns.
    pub(super) modes: Vec<Mode>,
    stops: Arc<StopSet>,
}

impl EpisodeSetup {
    /// Creates the setup of an episode of `policy`.
    pub(super) fn new(
        codec: TextCodec,
        policy: &Policy,
        settings: Arc<EpisodeSettings>,
        question: String,
        modes: Vec<Mode>,
    ) -> EpisodeSetup {
        let protocol = Arc::clone(&policy.protocol);
        let rules = policy.variant.rules();
        let stops = Arc::new(rules.stops(&*protocol));
        EpisodeSetup { codec, protocol, rules, settings, model: policy.name.clone(), question, modes, stops }
    }

    /// Returns a tracker of the episode's limits.
    pub(super) fn budget(&self) -> BudgetTracker {
        let limits = self.settings.budget;
        let reserves = Reserves {
            context: self.settings.context,
            ending: self.settings.reserved,
            answer: self.answer_reserve(),
            frame: self.settings.frame,
            turn: if self.settings.guided { LEAST_GUIDED } else { 1 },
        };
        BudgetTracker::new(limits, reserves).bounded(self.settings.max_tokens)
    }

    /// Returns the results of the searches that the prompt contains, because the episode continues an earlier one.
    pub(super) fn earlier_evidence(&self) -> &[SearchRecord] {
        self.settings.continues.as_deref().map_or(&[][..], |earlier| &earlier.evidence)
    }

    /// Returns the number of tokens set aside for a forced answer.
    fn answer_reserve(&self) -> usize {
        // After a thought the opening is longest.
        let Some(opening) = self.rules.answer_opening(&*self.protocol, SegmentKind::Think) else { return 0 };
        let limits = &self.settings.budget;
        let answer = limits.reserve(limits.sampled_tokens);
        let Some(most) = self.settings.max_tokens else { return answer };
        // A client's limit counts the opening as well. Half of a small limit is left for the turns.
        let opening = self.codec.literal(&opening).map_or(0, |ids| ids.len());
        let reserve = (answer + opening).min(most / 2);
        // A reserve that holds the opening only would be of no use.
        if reserve > opening { reserve } else { 0 }
    }

    /// Returns the guide of a turn. `None` if the protocol has none.
    pub(super) fn guide(&self, offer: &AllowedActions) -> Option<Guide> {
        let guide = self.protocol.guide(offer)?;
        Some(if self.settings.forms.call.is_some() { guide.with_call() } else { guide })
    }

    /// Makes text from outside harmless: what could be read as a tag of the protocol, and, if there are tools, as a tag
    /// of a call. Returns the number of replacements.
    pub(super) fn sanitize(&self, parts: &mut [Injected]) -> usize {
        let replaced = self.rules.sanitize(parts, self.protocol.tags());
        if self.settings.forms.offers_tools { replaced + self.rules.sanitize(parts, &TOOL_TAGS) } else { replaced }
    }

    /// Returns the rule for reading actions. A guided turn is never refused.
    pub(super) fn reading(&self) -> ReadingRule {
        if self.settings.guided { ReadingRule::Guided } else { self.rules.reading() }
    }

    /// Returns `true` if one more turn follows the last round.
    pub(super) fn concludes(&self) -> bool {
        self.settings.guided || self.rules.concludes(&*self.protocol)
    }

    /// Returns a filter for the answer on its way to the client.
    pub(super) fn filter(&self) -> AnswerFilter {
        AnswerFilter::new(&self.settings.stop, self.protocol.tags().trims).ended_by_call(&self.settings.one_call)
    }

    /// Returns the retrieval mode of a search.
    pub(super) fn mode(&self, search: &PolicySearch) -> Mode {
        self.settings.mode.or(search.mode).unwrap_or_else(|| self.settings.retrieval.search.mode())
    }

    /// Returns the tag of the thought that the prompt has opened, in which this turn begins.
    pub(super) fn opened(&self, turn: usize) -> Option<&'static str> {
        self.settings.opened.filter(|_| turn == 1)
    }

    /// Removes from an observation the text that the policy has already written at its beginning: a tag that both ends
    /// the turn and begins the observation, and white space, since the last token may extend beyond the closing tag.
    pub(super) fn join(&self, mut parts: Vec<Injected>, turn: &str) -> Vec<Injected> {
        let Some(Injected::Frame(first)) = parts.first_mut() else { return parts };
        let (action, written) = turn.split_at(turn.trim_end().len());
        let both = |stop: &&&str| action.ends_with(**stop) && first.starts_with(**stop);
        if let Some(stop) = self.protocol.stops().iter().find(both) {
            first.replace_range(..stop.len(), "");
        }
        self.rules.join(written, first);
        parts
    }

    /// Returns the parameters of a turn that is not guided. `writing` is the kind of text with which it goes on.
    pub(super) fn free_turn(&self, max: usize, writing: SegmentKind) -> GenerationParams {
        let constraint = self.settings.forms.turn.as_ref().and_then(|form| form.inside(writing));
        GenerationParams { max, stops: Arc::clone(&self.stops), constraint, ..GenerationParams::default() }
    }

    /// Returns the parameters of a turn that also stops at the tag `opening`, as its first stop string.
    pub(super) fn turn_until(&self, opening: &'static str, max: usize, writing: SegmentKind) -> GenerationParams {
        let stops = std::iter::once(opening).chain(self.protocol.stops().iter().copied());
        let stops = Arc::new(StopSet::new(stops).with_lines(self.protocol.lines()));
        GenerationParams { stops, ..self.free_turn(max, writing) }
    }

    /// Returns the parameters of a forced answer.
    pub(super) fn forced_answer(&self, max: usize) -> GenerationParams {
        let constraint = self.settings.forms.answer.as_ref().map(|shape| Arc::clone(&shape.answer));
        GenerationParams { max, stops: Arc::clone(&self.stops), constraint, ..GenerationParams::default() }
    }

    /// Returns the engine's parameters of the episode's generation with this number.
    pub(super) fn spec(&self, params: GenerationParams, number: u64) -> Generate {
        // Without its own random sequence, a turn that begins like another one would continue like it.
        // The constant is 2^64 divided by the golden ratio, as in SplitMix64: neighboring numbers get seeds far apart.
        const STRIDE: u64 = 0x9e37_79b9_7f4a_7c15;
        let seed = self.settings.seed.wrapping_add(number.wrapping_mul(STRIDE));
        let mut sampling = self.settings.sampling.params(seed, self.settings.logprobs.unwrap_or(0));
        sampling.logit_bias.extend(params.bans.iter().flat_map(|bans| bans.iter()));
        let GenerationParams { max, stops, allow, constraint, .. } = params;
        let TurnEnds { stop_ids, ignores_eos, min_tokens } = &self.settings.ends;
        let own = if *ignores_eos { &[][..] } else { self.codec.eos.as_slice() };
        let eos = [own, stop_ids].concat();
        let min_tokens = *min_tokens;
        Generate { sampling, max_tokens: max, min_tokens, stops, eos, allow, constraint, ..Generate::default() }
    }
}
