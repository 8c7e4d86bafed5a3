"""Where do the machines meet the world? The host of one broker: sockets, disks, clocks.

- `config`: one TOML file for a whole network, and what one node needs of it
- `connection`: bytes in, frames out; natural batching of what is sent
- `door`: who may come in; `security`: certificates, tokens and the rights they give
- `storage`: the logs of the pubends that live here; flushes, retention and archives in threads
- `links`: connections to the neighbour brokers, made again when they break
- `sessions`: the clients, and who answers them:
  `publishing` what they publish, through `protocol.sessions`; `subscriptions` who wants what;
  `delivery` how rows reach them and when they are taken
- `status` and `counters`: how the node is doing; `metrics` and `http` tell Prometheus
- `logs`: named events with fields, as JSON or for people
- `host`: the event loop around one `protocol.Broker`: events in, effects out
- `node`: all of it together, from start to stop
"""
