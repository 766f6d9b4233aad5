//! Routes, each declared together with the access it requires.

use std::collections::BTreeMap;

use axum::Router;
use axum::http::Method;
use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{Components, OpenApi, RefOr, Response};
use utoipa::{IntoResponses, OpenApi as _};
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter};

use super::access::Access;
use crate::api::error::ErrorBody;
use crate::api::openapi::ApiDoc;
use crate::api::state::AppState;
use crate::keys::Scope;

/// Name of the security scheme in the OpenAPI document.
const SCHEME: &str = "key";

/// Routes, each declared together with the access it requires. This is the only way to declare a route: one that
/// bypasses it is closed.
pub(crate) struct ProtectedRoutes {
    router: OpenApiRouter<AppState>,
    rules: RouteRules,
}

impl ProtectedRoutes {
    /// Creates an empty set of routes.
    pub(crate) fn new() -> Self {
        Self { router: OpenApiRouter::with_openapi(ApiDoc::openapi()), rules: RouteRules::default() }
    }

    /// Declares a route open to everyone.
    pub(crate) fn open(self, route: UtoipaMethodRouter<AppState>) -> Self {
        self.declare(Access::Open, route)
    }

    /// Declares a route for keys with the scope `infer`.
    pub(crate) fn infer(self, route: UtoipaMethodRouter<AppState>) -> Self {
        self.declare(Access::Needs(Scope::Infer), route)
    }

    /// Declares a route for keys with the scope `index`.
    pub(crate) fn index(self, route: UtoipaMethodRouter<AppState>) -> Self {
        self.declare(Access::Needs(Scope::Index), route)
    }

    /// Declares a route for keys with the scope `admin`.
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

    /// Adds the routes of `others`.
    pub(crate) fn merge(mut self, others: ProtectedRoutes) -> Self {
        for (path, rules) in others.rules.0 {
            self.rules.0.entry(path).or_default().extend(rules);
        }
        Self { router: self.router.merge(others.router), rules: self.rules }
    }

    /// Wraps a layer around each route.
    pub(crate) fn map(self, layer: impl FnOnce(OpenApiRouter<AppState>) -> OpenApiRouter<AppState>) -> Self {
        Self { router: layer(self.router), rules: self.rules }
    }

    /// Returns the router, its access rules, and the OpenAPI document.
    pub(crate) fn split(self) -> (Router<AppState>, RouteRules, OpenApi) {
        let (router, mut document) = self.router.split_for_parts();
        let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some(
            "Required if the server has API keys. The role is the scope that the key must have: `infer`, `index` or `admin`.",
        ));
        let components = document.components.get_or_insert_with(Components::new);
        components.add_security_scheme(SCHEME, SecurityScheme::Http(bearer.build()));
        (router, self.rules, document)
    }
}

/// Returns every operation of a path, with its method.
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

/// Responses of the gate, for the OpenAPI document.
#[derive(Debug, IntoResponses)]
#[expect(dead_code, reason = "only its schema is used")]
enum GateErrors {
    /// No API key, or an unknown one.
    #[response(status = 401)]
    Unknown(ErrorBody),
    /// The key lacks the required scope.
    #[response(status = 403)]
    Forbidden(ErrorBody),
    /// The key exceeds its rate or concurrency limit; `Retry-After` tells when to retry.
    #[response(status = 429)]
    TooMany(ErrorBody),
}

fn describe(operation: &mut Operation, scope: Scope) {
    operation.security = Some(vec![SecurityRequirement::new(SCHEME, [scope.name()])]);
    for (status, response) in GateErrors::responses() {
        let own = operation.responses.responses.entry(status).or_insert_with(|| response.clone());
        // A route may describe the same status itself; the document then holds both descriptions.
        if let (RefOr::T(own), RefOr::T(Response { description, .. })) = (own, response)
            && own.description != description
        {
            let end = if own.description.ends_with('.') { "" } else { "." };
            own.description = format!("{}{end} {description}", own.description);
        }
    }
}

/// Access rules of all declared routes.
#[derive(Debug, Clone, Default)]
pub(crate) struct RouteRules(BTreeMap<String, Vec<(Method, Access)>>);

/// Access rule for one path and method.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RouteRule {
    /// The route is declared and requires this access.
    Declared(Access),
    /// The path is declared but not for this method. Holds the allowed methods, comma-separated.
    Methods(String),
    /// The path is not declared.
    None,
}

impl RouteRules {
    /// Returns the rule for `method` on `path`, where `path` is the pattern it was declared with.
    pub(super) fn of(&self, path: &str, method: &Method) -> RouteRule {
        let Some(rules) = self.0.get(path) else { return RouteRule::None };
        // HEAD needs the same access as GET.
        let asked = if method == Method::HEAD { &Method::GET } else { method };
        if let Some((_, access)) = rules.iter().find(|(method, _)| method == asked) {
            return RouteRule::Declared(*access);
        }
        let names = rules.iter().flat_map(|(method, _)| match *method {
            Method::GET => vec!["GET", "HEAD"],
            ref method => vec![method.as_str()],
        });
        RouteRule::Methods(names.collect::<Vec<_>>().join(","))
    }

    /// Opens a declared path to everyone.
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
        let rules = RouteRules([("/a".to_owned(), vec![(Method::GET, Access::Open), (Method::POST, needs)])].into());
        assert_eq!(rules.of("/a", &Method::POST), RouteRule::Declared(needs));
        assert_eq!(rules.of("/a", &Method::HEAD), RouteRule::Declared(Access::Open));
        assert_eq!(rules.of("/a", &Method::DELETE), RouteRule::Methods("GET,HEAD,POST".to_owned()));
        assert_eq!(rules.of("/a/", &Method::GET), RouteRule::None);
        assert_eq!(rules.of("/A", &Method::GET), RouteRule::None);
    }
}
