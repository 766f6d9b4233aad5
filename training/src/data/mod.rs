//! Trajectories for the cold start: known answers, real search results, and the agent's own loop.
//!
//! Questions of training sets, whose way to the answer is known from gold triples, decompositions or passages, and
//! questions of one and of several hops made of corpora that no measured question is about, become [`Lesson`](lesson::Lesson)s. A
//! [`Teacher`](teacher::Teacher) plays each: it looks at what every search really found, quotes what matters, says so
//! where it is not there, and searches better. It writes through the [`Script`](script::Script), so that prompt, parser,
//! observations, bounds and the origins of tokens are those of the agent. It answers only what it has read; lessons that
//! it cannot read to their end are dropped. Nothing that is measured gets in: see [`Guard`](guard::Guard).
//!
//! | module | what it holds |
//! |---|---|
//! | [`recipe`], [`course`], [`builder`], [`report`] | from a recipe to samples |
//! | [`output`], [`taught`] | where they are kept, and the questions they are about |
//! | [`question`], [`corpus`], [`guard`] | the rows that are read, and what is kept out |
//! | [`lesson`], [`chain`], [`compare`], [`single`], [`compose`], [`person`], [`kin`], [`work`], [`relation`] | from rows to lessons |
//! | [`teacher`], [`reading`], [`phrase`], [`text`] | from lessons to turns |
//! | [`script`] | from turns to tokens |

pub mod builder;
pub mod chain;
pub mod compare;
pub mod compose;
pub mod corpus;
pub mod course;
pub mod guard;
pub mod kin;
pub mod lesson;
pub mod output;
pub mod person;
pub mod phrase;
pub mod question;
pub mod reading;
pub mod recipe;
pub mod relation;
pub mod report;
pub mod script;
pub mod single;
pub mod taught;
pub mod teacher;
pub mod text;
pub mod work;
