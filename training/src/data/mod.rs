//! Trajectories for the cold start: questions with known answers, played through the agent's own loop with real
//! searches.
//!
//! Each [`Lesson`](crate::lessons::lesson::Lesson) is a question with a known way to its answer. A
//! [`LessonTeacher`](teacher::LessonTeacher) plays it: the teacher reads the results of every search, quotes the
//! sentence that answers the current hop, says so if there is none, and then searches better. The turns pass through
//! the [`ScriptedGenerator`](scripted::ScriptedGenerator), so prompt, parser, observations, budget and token origins
//! are those of the agent. The teacher answers only what it has read, except for the guesses of
//! [`Habits::concede`](teacher::Habits::concede); other lessons that cannot be finished are dropped. The
//! [`ContaminationFilter`](crate::lessons::contamination::ContaminationFilter) keeps measured questions out.
//!
//! | module | contents |
//! |---|---|
//! | [`recipe`], [`lesson_plan`], [`sample_balance`] | recipe, order of the lessons, limits on shares of samples |
//! | [`player`], [`teacher`], [`preview`], [`routing`], [`reading`], [`phrases`] | from lessons to turns |
//! | [`voice`] | the form of the turns, one file per protocol |
//! | [`scripted`] | from turns to tokens |
//! | [`build_output`], [`question_files`], [`build_stats`] | files and statistics of the output |

pub mod build_output;
pub mod build_stats;
pub mod lesson_plan;
pub mod phrases;
pub mod player;
pub mod preview;
pub mod question_files;
pub mod reading;
pub mod recipe;
pub mod routing;
pub mod sample_balance;
pub mod scripted;
pub mod teacher;
pub mod voice;
