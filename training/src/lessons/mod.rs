//! Lesson builder: turns data sets and encyclopedia articles into questions with a known way to the answer.
//!
//! The inputs are the gold annotations of question answering data sets (2WikiMultiHopQA, HotpotQA, MuSiQue) and facts
//! that simple patterns extract from the English of Wikipedia-style articles. The outputs are
//! [`Lesson`](lesson::Lesson)s, which [`data`](crate::data) plays through the agent's loop. The patterns, relations and
//! question forms are specific to these data sets. Only [`data`](crate::data) and `train data` use this module;
//! serving, rewards and training do not.
//!
//! | module | contents |
//! |---|---|
//! | [`rows`], [`corpus`] | rows of the data set files |
//! | [`contamination`] | filter that keeps measured questions out |
//! | [`lesson`] | lessons and their hops |
//! | [`multi_hop`], [`comparison`] | lessons from annotated questions |
//! | [`wikipedia`] | facts from articles |
//! | [`single_hop`], [`composition`] | lessons from facts |
//! | [`small_talk`] | lessons without a question |
//! | [`relation`], [`text`] | phrases of relations, and text matching |

pub mod comparison;
pub mod composition;
pub mod contamination;
pub mod corpus;
pub mod lesson;
pub mod multi_hop;
pub mod relation;
pub mod rows;
pub mod single_hop;
pub mod small_talk;
pub mod text;
pub mod wikipedia;
