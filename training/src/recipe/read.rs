//! Reading of recipes: parsing, overrides and validation.

use std::path::Path;

use toml::{Table, Value};
use waymark_models::Arithmetic;
use waymark_models::gradient::Precision;
use waymark_models::sampler::SamplingParams;

use super::{Dpo, Grpo, GrpoStage, Recipe, RecipeError, Sft, TeacherSettings};
use crate::reward::RewardChoice;

impl Recipe {
    /// Reads a recipe. Each of `overrides` is `section.field=value` and takes precedence over the file.
    ///
    /// # Errors
    /// [`RecipeError`] with the file, the field and the valid values.
    pub fn open(path: &Path, overrides: &[String]) -> Result<Self, RecipeError> {
        let text = std::fs::read_to_string(path).map_err(|source| RecipeError::Io { path: path.into(), source })?;
        Self::parse(&text, path, overrides)
    }

    /// Parses the text of a recipe. `path` appears in error messages.
    ///
    /// # Errors
    /// Same as [`open`](Self::open).
    pub fn parse(text: &str, path: &Path, overrides: &[String]) -> Result<Self, RecipeError> {
        let syntax = |error: toml::de::Error| RecipeError::Syntax { path: path.into(), reason: error.to_string() };
        let mut table: Table = text.parse().map_err(syntax)?;
        // Replaced before anything is checked, so that overrides are checked like the file.
        for text in overrides {
            replace(&mut table, text)?;
        }
        // `serde_path_to_error` adds the path of the invalid field to the message.
        let recipe: Recipe = serde_path_to_error::deserialize(Value::Table(table)).map_err(|error| {
            let reason = error.inner().to_string().trim().to_owned();
            RecipeError::Field { path: path.into(), field: error.path().to_string(), reason }
        })?;
        match recipe.flaw() {
            None => Ok(recipe),
            Some((field, reason)) => Err(RecipeError::Field { path: path.into(), field: field.into(), reason }),
        }
    }

    /// Returns the section for supervised training.
    ///
    /// # Errors
    /// If the recipe has no such section.
    pub fn sft(&self, path: &Path) -> Result<&Sft, RecipeError> {
        self.sft.as_ref().ok_or_else(|| missing(path, "sft"))
    }

    /// Returns the section for GRPO.
    ///
    /// # Errors
    /// If the recipe has no such section.
    pub fn grpo(&self, path: &Path) -> Result<&Grpo, RecipeError> {
        self.grpo.as_ref().ok_or_else(|| missing(path, "grpo"))
    }

    /// Returns the section for DPO.
    ///
    /// # Errors
    /// If the recipe has no such section.
    pub fn dpo(&self, path: &Path) -> Result<&Dpo, RecipeError> {
        self.dpo.as_ref().ok_or_else(|| missing(path, "dpo"))
    }

    /// Returns the first invalid field, with the reason.
    fn flaw(&self) -> Option<(&'static str, String)> {
        let (beta1, beta2) = self.optimizer.betas;
        let own = [
            ("name", !self.name.is_empty(), "must not be empty"),
            (
                "optimizer.betas",
                (0.0..1.0).contains(&beta1) && (0.0..1.0).contains(&beta2),
                "must be from 0 to below 1",
            ),
            ("optimizer.epsilon", self.optimizer.epsilon > 0.0, "must be above 0"),
            ("optimizer.weight_decay", self.optimizer.weight_decay >= 0.0, "must be at least 0"),
            ("optimizer.clip", self.optimizer.clip >= 0.0, "must be at least 0; 0 disables clipping"),
        ];
        let whole = self.adapter.is_some() || self.precision == Precision::F32;
        let precision = [(
            "precision",
            whole,
            "applies to adapters only: without an adapter, all weights are trained and saved in f32",
        )];
        let plain = self.arithmetic == Arithmetic::F32;
        let frozen = "applies to frozen weights only: without an adapter, all weights are trained in f32";
        let serving = "int16 is for serving only: training multiplies in f32 or bf16";
        let arithmetic = [
            ("arithmetic", plain || self.adapter.is_some(), frozen),
            ("arithmetic", self.arithmetic != Arithmetic::Int16, serving),
        ];
        let adapter = self.adapter.iter().flat_map(|adapter| {
            [
                ("adapter.rank", adapter.rank > 0, "must be at least 1"),
                ("adapter.alpha", adapter.alpha > 0.0, "must be above 0"),
                ("adapter.targets", !adapter.targets.is_empty(), "name at least one projection, such as \"q_proj\""),
            ]
        });
        let checks = own.into_iter().chain(precision).chain(arithmetic).chain(adapter);
        let checks = checks.chain(self.sft.iter().flat_map(Sft::checks)).chain(self.grpo.iter().flat_map(Grpo::checks));
        let checks = checks.chain(self.dpo.iter().flat_map(Dpo::checks));
        let wrong = checks.into_iter().find(|(_, right, _)| !right).map(|(field, _, why)| (field, why.to_owned()));
        // Checked last, because these checks read values that the checks above have found valid.
        let wrong = wrong.or_else(|| self.policy_flaw()).or_else(|| self.sampling_flaw());
        let wrong = wrong.or_else(|| self.first_modes_flaw());
        wrong.or_else(|| self.recompute_flaw()).or_else(|| self.routes_flaw()).or_else(|| self.teacher_flaw())
    }

    /// Validates `[policy]`.
    fn policy_flaw(&self) -> Option<(&'static str, String)> {
        let stated = RESERVED.iter().find(|(name, _)| self.policy.contains_key(*name));
        if let Some(&(name, field)) = stated {
            return Some((field, format!("must not be set: training determines the policy's {name}")));
        }
        Some(("policy", self.policy().err()?.to_string()))
    }

    /// Validates the sampling parameters of rollouts, which default to those of `[policy.sampling]`.
    fn sampling_flaw(&self) -> Option<(&'static str, String)> {
        let policy = self.policy().ok()?;
        let grpo = self.grpo.iter().map(|grpo| ("grpo.sampling", &grpo.sampling));
        let dpo = self.dpo.iter().map(|dpo| ("dpo.sampling", &dpo.sampling));
        grpo.chain(dpo).find_map(|(field, sampling)| {
            let params = sampling.or(&policy.sampling).params(0, 0);
            if let Err(error) = params.check() {
                return Some((field, error.to_string()));
            }
            // Equal trajectories have equal rewards, so there is nothing to learn from them.
            let greedy = params.is_greedy() || params.top_k == 1;
            if greedy {
                return Some((field, GREEDY.to_owned()));
            }
            // The ratio of the policy loss is defined over the model's own distribution. DPO does not depend on how
            // its trajectories were sampled.
            let SamplingParams { top_p, top_k, min_p, .. } = params;
            let own = SamplingParams { top_p, top_k, min_p, ..SamplingParams::default() };
            (field == "grpo.sampling" && params != own).then(|| (field, NOT_OWN_DISTRIBUTION.to_owned()))
        })
    }

    /// Validates `grpo.recompute`. A protocol variant that re-encodes turns produces tokens that were never sampled,
    /// so only the learner can compute their log-probabilities.
    fn recompute_flaw(&self) -> Option<(&'static str, String)> {
        let encodes = self.policy().ok()?.variant.is_training();
        let sampled = self.grpo.as_ref().is_some_and(|grpo| !grpo.recompute);
        (encodes && sampled).then(|| ("grpo.recompute", RECOMPUTE.to_owned()))
    }

    /// Validates `grpo.first_modes` against the protocol.
    fn first_modes_flaw(&self) -> Option<(&'static str, String)> {
        let grpo = self.grpo.as_ref().filter(|grpo| !grpo.first_modes.is_empty())?;
        let policy = self.policy().ok()?;
        let unnamed = grpo.first_modes.iter().find(|mode| policy.protocol.mode_prefix(**mode).is_none());
        let reason = if let Some(mode) = unnamed {
            format!("{mode}: queries of the protocol {} do not name this mode", policy.protocol.name())
        } else if grpo.first_modes.len() >= grpo.group {
            "must be fewer than grpo.group, because only trajectories that choose their own mode learn to choose".into()
        } else if policy.variant.is_training() {
            "must be empty if policy.variant is training, which encodes turns again".into()
        } else {
            return None;
        };
        Some(("grpo.first_modes", reason))
    }

    /// Checks that `grpo.routes` and the path_router rewards agree on `right` and `enough`: they are the same θ_C and
    /// θ_P.
    fn routes_flaw(&self) -> Option<(&'static str, String)> {
        let grpo = self.grpo.as_ref()?;
        let routes = grpo.routes.as_ref()?;
        let differs = |stage: &GrpoStage| match &stage.reward {
            RewardChoice::PathRouter(reward) => (reward.right, reward.enough) != (routes.right, routes.enough),
            _ => false,
        };
        let why = "right and enough must be those of each path_router reward in grpo.stages";
        grpo.stages.iter().any(differs).then(|| ("grpo.routes", why.to_owned()))
    }

    /// Checks that the teacher agrees with routes and rewards on `enough`: it is the same θ_P.
    fn teacher_flaw(&self) -> Option<(&'static str, String)> {
        let grpo = self.grpo.as_ref()?;
        let enough = grpo.teacher.as_ref()?.enough;
        let rewarded = grpo.stages.iter().filter_map(|stage| match &stage.reward {
            RewardChoice::PathRouter(reward) => Some(reward.enough),
            _ => None,
        });
        let mut others = grpo.routes.iter().map(|routes| routes.enough).chain(rewarded);
        let why = "enough must be that of grpo.routes and of each path_router reward in grpo.stages";
        others.any(|other| other != enough).then(|| ("grpo.teacher", why.to_owned()))
    }
}

/// A validation: field, `true` if its value is valid, and the message otherwise.
pub(super) type Check = (&'static str, bool, &'static str);

/// Keys of a policy file that `[policy]` of a recipe must not contain, with the field name for messages.
const RESERVED: &[(&str, &str)] = &[
    ("name", "policy.name"),
    ("base", "policy.base"),
    ("base_id", "policy.base_id"),
    ("adapter", "policy.adapter"),
    ("training", "policy.training"),
];

const RECOMPUTE: &str = "must be true if policy.variant is training, because that variant re-encodes turns and not all of \
    their tokens were sampled";
const GREEDY: &str = "greedy rollouts of a question are all the same: set a temperature above 0 and no top_k of 1 \
    (parameters not set here come from [policy.sampling])";
const NOT_OWN_DISTRIBUTION: &str = "must have temperature 1 and neither penalties nor logit_bias (parameters not set here come from \
    [policy.sampling]), because training uses log-probabilities without them";
pub(super) const RATE: &str = "must be above 0 and at most 1";
pub(super) const SHARE: &str = "must be from 0 to 1";
pub(super) const COUNT: &str = "must be at least 1";

impl Sft {
    fn checks(&self) -> Vec<Check> {
        vec![
            ("sft.learning_rate", rate(self.learning_rate), RATE),
            ("sft.warmup", share(self.warmup), SHARE),
            ("sft.epochs", self.epochs > 0, COUNT),
            ("sft.batch", self.batch > 0, COUNT),
            ("sft.longest", self.longest > 0, COUNT),
            (
                "sft.pack_tokens",
                self.pack_tokens >= self.longest,
                "must be at least sft.longest, because trajectories are never cut",
            ),
            ("sft.held_out", (0.0..1.0).contains(&self.held_out), "must be from 0 to below 1"),
            ("sft.keep_last", self.keep_last > 0, COUNT),
        ]
    }
}

impl Grpo {
    fn checks(&self) -> Vec<Check> {
        let own = [
            ("grpo.learning_rate", rate(self.learning_rate), RATE),
            ("grpo.warmup", share(self.warmup), SHARE),
            ("grpo.questions", self.questions > 0, COUNT),
            (
                "grpo.group",
                self.group > 1,
                "must be at least 2, because a trajectory is compared with others of its question",
            ),
            ("grpo.mini_batch", self.mini_batch > 0, COUNT),
            (
                "grpo.micro_batch",
                self.micro_batch > 0 && self.micro_batch <= self.mini_batch,
                "must be from 1 to grpo.mini_batch",
            ),
            ("grpo.pack_tokens", self.pack_tokens > 0, COUNT),
            ("grpo.loss.clip", self.loss.clip > 0.0 && self.loss.clip < 1.0, "must be between 0 and 1"),
            ("grpo.loss.kl", self.loss.kl >= 0.0, "must be at least 0"),
            ("grpo.loss.entropy", self.loss.entropy >= 0.0, "must be at least 0"),
            ("grpo.thrift", self.thrift >= 0.0, "must be at least 0"),
            ("grpo.concurrent", self.concurrent > 0, COUNT),
            ("grpo.keep_last", self.keep_last > 0, COUNT),
            ("grpo.stages", self.stages.iter().any(|stage| stage.steps > 0), "must contain at least one step"),
        ];
        own.into_iter().chain(self.teacher.iter().flat_map(TeacherSettings::checks)).collect()
    }
}

impl TeacherSettings {
    fn checks(&self) -> [Check; 3] {
        [
            ("grpo.teacher.tokens", self.tokens > 0, COUNT),
            (
                "grpo.teacher.weight",
                self.weight >= 0.0 && self.weight.is_finite(),
                "must be a finite number of at least 0; 0 disables the teacher",
            ),
            ("grpo.teacher.enough", share(self.enough), SHARE),
        ]
    }
}

pub(super) fn rate(value: f64) -> bool {
    value > 0.0 && value <= 1.0
}

pub(super) fn share(value: f64) -> bool {
    (0.0..=1.0).contains(&value)
}

fn missing(path: &Path, field: &str) -> RecipeError {
    let reason = format!("this recipe has no section [{field}]: add one or use another recipe");
    RecipeError::Field { path: path.into(), field: field.into(), reason }
}

/// Inserts one override into the table.
pub(crate) fn replace(table: &mut Table, text: &str) -> Result<(), RecipeError> {
    let refuse = |reason| RecipeError::Override { text: text.into(), reason };
    let (path, value) = text.split_once('=').ok_or_else(|| refuse("write section.field=value"))?;
    let mut keys: Vec<&str> = path.trim().split('.').collect();
    let last = keys.pop().filter(|key| !key.is_empty()).ok_or_else(|| refuse("name a field before the ="))?;
    let mut inner = table;
    for key in keys {
        // A missing section is created, so that an override can add one.
        let entry = inner.entry(key).or_insert_with(|| Value::Table(Table::new()));
        inner = entry.as_table_mut().ok_or_else(|| refuse("the part before a dot must be a section"))?;
    }
    inner.insert(last.to_owned(), read(value.trim()));
    Ok(())
}

/// Parses a TOML value. Anything else becomes a string, so that quotation marks can be left out.
fn read(text: &str) -> Value {
    let parsed = format!("value = {text}").parse::<Table>().ok().and_then(|mut table| table.remove("value"));
    parsed.unwrap_or_else(|| Value::String(text.to_owned()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const TEXT: &str = r#"
        name = "tiny"
        base = "somewhere"
        seed = 1
        [policy]
        protocol = "routerag"
        [adapter]
        rank = 4
        alpha = 8.0
        targets = ["q_proj", "v_proj"]
        seed = 1
        [sft]
        learning_rate = 1e-3
        schedule = "linear"
        warmup = 0.1
        epochs = 1
        batch = 2
        pack_tokens = 100
        longest = 50
        held_out = 0.1
        validate_every = 0
        save_every = 0
        keep_last = 1
    "#;

    fn parse(overrides: &[&str]) -> Result<Recipe, RecipeError> {
        let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
        Recipe::parse(TEXT, Path::new("tiny.toml"), &overrides)
    }

    #[test]
    fn overrides_take_precedence() {
        let recipe =
            parse(&["sft.epochs=3", "base=else/where", "adapter.targets=[\"o_proj\"]", "policy.retrieval.k=5"])
                .unwrap();
        assert_eq!((recipe.sft.as_ref().unwrap().epochs, recipe.base.as_str()), (3, "else/where"));
        assert_eq!(
            (recipe.adapter.as_ref().unwrap().targets.len(), recipe.policy().unwrap().retrieval.search.k),
            (1, Some(5))
        );
    }

    #[test]
    fn errors_name_file_field_and_fix() {
        for (set, field, reason) in [
            ("sft.lerning_rate=1", "sft", "unknown field `lerning_rate`, expected one of `learning_rate`"),
            ("sft.epochs=many", "sft.epochs", "expected usize"),
            ("sft.learning_rate=0.0", "sft.learning_rate", "above 0"),
            ("sft.longest=1000", "sft.pack_tokens", "at least sft.longest"),
            ("adapter.targets=[\"k_prj\"]", "adapter.targets[0]", "unknown variant `k_prj`"),
            ("policy.protocol=routerug", "policy", "routerug"),
            ("policy.retrieval.kk=3", "policy", "unknown field `kk`"),
            ("precision=f8", "precision", "unknown variant `f8`"),
        ] {
            let error = parse(&[set]).unwrap_err().to_string();
            assert!(error.starts_with(&format!("tiny.toml: {field}")), "{set}: {error}");
            assert!(error.contains(reason), "{set}: {error}");
        }
    }

    #[test]
    fn invalid_sampling_and_policy_fields_are_refused() {
        let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/recipes/routerag-smollm2.toml"));
        for (set, field, reason) in [
            ("grpo.sampling={}", "grpo.sampling", "greedy"),
            ("grpo.sampling={temperature=0.000001}", "grpo.sampling", "[policy.sampling]"),
            ("grpo.sampling={temperature=1.0,top_k=1}", "grpo.sampling", "top_k of 1"),
            ("grpo.sampling={temperature=1.0,top_p=7.0}", "grpo.sampling", "top_p must be"),
            ("grpo.sampling={temperature=0.7}", "grpo.sampling", "temperature 1"),
            ("policy.sampling.repetition_penalty=1.1", "grpo.sampling", "neither penalties"),
            ("grpo.group=1", "grpo.group", "at least 2"),
            ("policy.name=other", "policy.name", "must not be set"),
            ("policy.adapter=somewhere", "policy.adapter", "must not be set"),
            ("policy.training={}", "policy.training", "must not be set"),
            ("policy.variant=training", "grpo.recompute", "re-encodes turns"),
            ("grpo.first_modes=[\"kag\"]", "grpo.first_modes", "kag: queries of the protocol routerag"),
            (
                "grpo.first_modes=[\"graph\",\"graph\",\"graph\",\"graph\",\"graph\",\"graph\"]",
                "grpo.first_modes",
                "fewer than grpo.group",
            ),
        ] {
            let error = Recipe::open(path, &[set.to_owned()]).unwrap_err().to_string();
            assert!(error.contains(&format!(": {field}: ")) && error.contains(reason), "{set}: {error}");
        }
        let warm = ["policy.sampling.temperature=1.0".to_owned(), "grpo.sampling={}".to_owned()];
        assert!(Recipe::open(path, &warm).is_ok());
    }

    #[test]
    fn routes_and_their_reward_share_their_bounds() {
        let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/recipes/path_router.toml"));
        let open = |set: &str| Recipe::open(path, &[set.to_owned()]);
        for set in ["grpo.routes.right=0.6", "grpo.routes.enough=0.2"] {
            let error = open(set).unwrap_err().to_string();
            assert!(error.contains(": grpo.routes: right and enough must be those of"), "{set}: {error}");
        }
        assert!(open("grpo.routes.lucky=0.6").is_ok());
        let other = ["grpo.routes.right=0.6", "grpo.stages=[{steps=1,reward=\"exact_match\"}]"].map(str::to_owned);
        assert!(Recipe::open(path, &other).is_ok());
    }

    #[test]
    fn path_router_has_the_turns_of_its_paper() {
        let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/recipes/path_router.toml"));
        let policy = Recipe::open(path, &[]).unwrap().policy().unwrap();
        assert_eq!(policy.budget.turns, 5);
    }

    #[test]
    fn invalid_teachers_are_refused() {
        let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/recipes/path_router.toml"));
        let open = |set: &[&str]| Recipe::open(path, &set.iter().map(|set| (*set).to_owned()).collect::<Vec<_>>());
        let recipe = open(&[]).unwrap();
        let grpo = recipe.grpo.as_ref().unwrap();
        assert_eq!(grpo.active_teacher(), Some(&TeacherSettings::default()));
        let without = open(&["grpo.teacher.weight=0.0", "grpo.loss.kl=0.0"]).unwrap();
        assert!(
            without.grpo.is_some_and(|grpo| grpo.active_teacher().is_none() && !grpo.needs_reference())
                && grpo.needs_reference()
        );
        let stages = "grpo.stages=[{steps=1,reward=\"exact_match\"}]";
        for (set, field, reason) in [
            (&["grpo.teacher.enough=0.2"][..], "grpo.teacher", "that of grpo.routes and"),
            (&["grpo.teacher.enough=0.2", stages][..], "grpo.teacher", "that of grpo.routes and"),
            (&["grpo.teacher.enough=1.2"][..], "grpo.teacher.enough", "from 0 to 1"),
            (&["grpo.teacher.tokens=0"][..], "grpo.teacher.tokens", "at least 1"),
            (&["grpo.teacher.weight=-0.1"][..], "grpo.teacher.weight", "at least 0"),
            (&["grpo.teacher.weight=inf"][..], "grpo.teacher.weight", "at least 0"),
            (&["grpo.teacher.tokns=1"][..], "grpo.teacher.tokns", "unknown field `tokns`"),
        ] {
            let error = open(set).unwrap_err().to_string();
            assert!(error.contains(&format!(": {field}: ")) && error.contains(reason), "{set:?}: {error}");
        }
    }

    #[test]
    fn precision_needs_an_adapter() {
        assert_eq!(parse(&[]).unwrap().precision, Precision::F32);
        assert_eq!(parse(&["precision=bf16"]).unwrap().precision, Precision::Bf16);
        let adapter = TEXT.find("[adapter]").unwrap()..TEXT.find("[sft]").unwrap();
        let whole = TEXT.replace(&TEXT[adapter], "");
        let error = Recipe::parse(&whole, Path::new("tiny.toml"), &["precision=f16".into()]).unwrap_err().to_string();
        assert!(error.starts_with("tiny.toml: precision: applies to adapters only"), "{error}");
    }

    #[test]
    fn bf16_arithmetic_needs_an_adapter() {
        let plain = parse(&[]).unwrap();
        let rounded = parse(&["arithmetic=bf16"]).unwrap();
        assert_eq!((plain.arithmetic, rounded.arithmetic), (Arithmetic::F32, Arithmetic::Bf16));
        let text = |recipe: &Recipe| toml::to_string(recipe).unwrap();
        assert!(!text(&plain).contains("arithmetic") && text(&rounded).contains("arithmetic = \"bf16\""));
        let adapter = TEXT.find("[adapter]").unwrap()..TEXT.find("[sft]").unwrap();
        let whole = TEXT.replace(&TEXT[adapter], "");
        let error = Recipe::parse(&whole, Path::new("tiny.toml"), &["arithmetic=bf16".into()]).unwrap_err().to_string();
        assert!(error.starts_with("tiny.toml: arithmetic: applies to frozen weights only"), "{error}");
        assert!(parse(&["arithmetic=int16"]).unwrap_err().to_string().contains("int16 is for serving only"));
    }

    #[test]
    fn malformed_overrides_are_refused() {
        for set in ["sft.epochs", "=3", "name.first=x"] {
            assert!(matches!(parse(&[set]).unwrap_err(), RecipeError::Override { .. }), "{set}");
        }
        assert!(parse(&[]).unwrap().grpo(Path::new("tiny.toml")).unwrap_err().to_string().contains("[grpo]"));
    }

    #[test]
    fn paths_in_recipe_comments_exist() {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
        let mut named = 0;
        for entry in std::fs::read_dir(root.join("training/recipes")).unwrap() {
            let recipe = entry.unwrap().path();
            let text = std::fs::read_to_string(&recipe).unwrap();
            let words = text.split(|c: char| c.is_whitespace() || "`:;,()".contains(c));
            for word in words.filter(|word| ["agent/", "src/", "training/"].iter().any(|top| word.starts_with(top))) {
                // A path at the end of a sentence.
                let place = word.trim_end_matches('.');
                assert!(root.join(place).exists(), "{}: {place} is not there", recipe.display());
                named += 1;
            }
        }
        assert!(named > 0);
    }

    #[test]
    fn bundled_recipes_round_trip() {
        let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/recipes"));
        for name in [
            "routerag",
            "routerag-smollm2",
            "search_r1",
            "path_router",
            "path_router-smollm2",
            "graphrag_r1",
            "graphrag_r1-smollm2",
        ] {
            let path = folder.join(format!("{name}.toml"));
            let recipe = Recipe::open(&path, &[]).unwrap();
            assert!(recipe.sft(&path).is_ok() && recipe.grpo(&path).is_ok(), "{name}");
            // Runs and policies store the recipe in this form.
            let text = toml::to_string(&recipe).unwrap();
            assert_eq!(Recipe::parse(&text, &path, &[]).unwrap(), recipe, "{name}");
        }
        for name in ["tearag", "tearag-smollm2", "evo_rag", "evo_rag-smollm2"] {
            let path = folder.join(format!("{name}.toml"));
            let recipe = Recipe::open(&path, &[]).unwrap();
            assert!(recipe.sft(&path).is_ok() && recipe.dpo(&path).is_ok(), "{name}");
            let text = toml::to_string(&recipe).unwrap();
            assert_eq!(Recipe::parse(&text, &path, &[]).unwrap(), recipe, "{name}");
        }
    }
}
