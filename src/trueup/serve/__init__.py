"""The web page, the metrics and the API of `trueup serve`: what the task stores and the nodes say, read by a collector.

Reading order: `run` (the path: options, collector, application, server), `options` (addresses, tokens, TLS), `model`
(what was seen), `collector` (threads that read the sources at intervals), `sources` (how each of them is read),
`attention` (what needs attention), `app` (the routes), `reading` (task stores), `answers` (of the API), `guard` (hosts,
tokens, headers, limits), `server` (uvicorn, slow clients), `views` (the blocks of a page), `pages` (the content of
pages), `charts` (SVG), `render` (templates), `metrics`, `publish` (of commands that end), `documents` (the API and its
description), `actions`; alerts: `alert_settings`, `alert_rules`, `notify`.
"""

from __future__ import annotations
