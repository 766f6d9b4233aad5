//! Routes, each declared together with what it needs.

use std::collections::BTreeMap;

use axum::Router;
use axum::http::Method;
use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{Components, OpenApi, RefOr, Response};
use utoipa::{IntoResponses, OpenApi as _};
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter};

use super::scope::{Access, Scope};
use crate::api::error::ErrorBody;
use crate::api::openapi::Head;
use crate::api::state::AppState;

/// What the document calls the way to show a key.
const SCHEME: &str = "key";

/// Routes, each declared together with what it needs. There is no other way to declare one, and a route that came in
/// past this is closed.
pub(crate) struct Routes {
    router: OpenApiRouter<AppState>,
    rules: Rules,
}

impl Routes {
    /// None yet.
    pub(crate) fn new() -> Self {
        Self { router: OpenApiRouter::with_openapi(Head::openapi()), rules: Rules::default() }
    }

    /// A route for everybody.
    pub(crate) fn open(self, route: UtoipaMethodRouter<AppState>) -> Self {
        self.declare(Access::Open, route)
    }

    /// A route for keys that may ask and search.
    pub(crate) fn infer(self, route: UtoipaMethodRouter<AppState>) -> Self {
        self.declare(Access::Needs(Scope::Infer), route)
    }

    /// A route for keys that may read and change documents.
    pub(crate) fn index(self, route: UtoipaMethodRouter<AppState>) -> Self {
        self.declare(Access::Needs(Scope::Index), route)
    }

    /// A route for keys that may change what is served and look inside.
    pub(crate) fn admin(self, route: UtoipaMethodRouter<AppState>) -> Self {
        self.declare(Access::Needs(Scope::Admin), route)
    }

    fn declare(mut self, access: Access, mut route: UtoipaMethodRouter<AppState>) -> Self {
        for (path, item) in &mut route.1.paths {
            for (method, operation) in operations(item) {
                if let Access::Needs(scope) = access {
                    describe(operation, scope);
                }
                self.rules.0.entry(path.clone()).or_default().push((method, access));
            }
        }
        Self { router: self.router.routes(route), rules: self.rules }
    }

    /// These and the others.
    pub(crate) fn merge(mut self, others: Routes) -> Self {
        for (path, rules) in others.rules.0 {
            self.rules.0.entry(path).or_default().extend(rules);
        }
        Self { router: self.router.merge(others.router), rules: self.rules }
    }

    /// The same routes, with a layer around each.
    pub(crate) fn map(self, layer: impl FnOnce(OpenApiRouter<AppState>) -> OpenApiRouter<AppState>) -> Self {
        Self { router: layer(self.router), rules: self.rules }
    }

    /// The routes, what they need, and their description.
    pub(crate) fn split(self) -> (Router<AppState>, Rules, OpenApi) {
        let (router, mut document) = self.router.split_for_parts();
        let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some(
            "Needed where the server has keys. The role is the scope that the key must have: `infer`, `index` or `admin`.",
        ));
        let components = document.components.get_or_insert_with(Components::new);
        components.add_security_scheme(SCHEME, SecurityScheme::Http(bearer.build()));
        (router, self.rules, document)
    }
}

/// Every operation of a path, with its method.
fn operations(item: &mut PathItem) -> Vec<(Method, &mut Operation)> {
    let all = [
        (Method::GET, &mut item.get),
        (Method::PUT, &mut item.put),
        (Method::POST, &mut item.post),
        (Method::DELETE, &mut item.delete),
        (Method::PATCH, &mut item.patch),
    ];
    all.into_iter().filter_map(|(method, operation)| Some((method, operation.as_mut()?))).collect()
}

/// The answers of the door, for the document.
#[derive(Debug, IntoResponses)]
#[expect(dead_code, reason = "only its shape is used")]
enum Closed {
    /// No key, or one that is not known.
    #[response(status = 401)]
    Unknown(ErrorBody),
    /// The key may not do this.
    #[response(status = 403)]
    Forbidden(ErrorBody),
    /// The key asks too often or too much at once; `Retry-After` says when to come back.
    #[response(status = 429)]
    TooMany(ErrorBody),
}

fn describe(operation: &mut Operation, scope: Scope) {
    operation.security = Some(vec![SecurityRequirement::new(SCHEME, [scope.name()])]);
    for (status, response) in Closed::responses() {
        let own = operation.responses.responses.entry(status).or_insert_with(|| response.clone());
        if let (RefOr::T(own), RefOr::T(Response { description, .. })) = (own, response)
            && own.description != description
        {
            own.description = format!("{} {description}", own.description);
        }
    }
}

/// What every declared route needs.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rules(BTreeMap<String, Vec<(Method, Access)>>);

/// What is known of a route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Rule {
    /// What it needs.
    Declared(Access),
    /// The path is declared, the method is not; these are.
    Methods(String),
    /// Nobody declared it.
    None,
}

impl Rules {
    /// What `path`, as it was declared, needs for `method`.
    pub(super) fn of(&self, path: &str, method: &Method) -> Rule {
        let Some(rules) = self.0.get(path) else { return Rule::None };
        // Who may get something may also ask for its head.
        let asked = if method == Method::HEAD { &Method::GET } else { method };
        if let Some((_, access)) = rules.iter().find(|(method, _)| method == asked) {
            return Rule::Declared(*access);
        }
        let names = rules.iter().flat_map(|(method, _)| match *method {
            Method::GET => vec!["GET", "HEAD"],
            ref method => vec![method.as_str()],
        });
        Rule::Methods(names.collect::<Vec<_>>().join(","))
    }

    /// Lets everybody use what was declared otherwise.
    pub(crate) fn open(&mut self, path: &str) {
        for (_, access) in self.0.get_mut(path).into_iter().flatten() {
            *access = Access::Open;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_of_a_path_and_a_method() {
        let needs = Access::Needs(Scope::Index);
        let rules = Rules([("/a".to_owned(), vec![(Method::GET, Access::Open), (Method::POST, needs)])].into());
        assert_eq!(rules.of("/a", &Method::POST), Rule::Declared(needs));
        assert_eq!(rules.of("/a", &Method::HEAD), Rule::Declared(Access::Open));
        assert_eq!(rules.of("/a", &Method::DELETE), Rule::Methods("GET,HEAD,POST".to_owned()));
        assert_eq!(rules.of("/a/", &Method::GET), Rule::None);
        assert_eq!(rules.of("/A", &Method::GET), Rule::None);
    }
}
