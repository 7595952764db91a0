"""Connections to Redis with redis-py: a single server, a master found by Sentinel, or a cluster; plain or with TLS."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import SplitResult, unquote, urlsplit

from trueup.config.transport import check_transport
from trueup.errors import ConfigError
from trueup.sinks.options import Options

if TYPE_CHECKING:
    from redis import Redis, RedisCluster

    Client: TypeAlias = "Redis | RedisCluster"

_TIMEOUT = 60.0
_PORT, _SENTINEL_PORT = 6379, 26379


@dataclass(frozen=True)
class RedisAddress:
    """The servers, and how to log in."""

    hosts: tuple[tuple[str, int], ...]
    database: int
    user: str
    password: str = field(repr=False)
    is_tls: bool = False
    # Files for TLS: certificates of the authority, certificate and key of the client.
    ca: str = ""
    cert: str = ""
    cert_key: str = ""
    is_cluster: bool = False
    # The name of the service, if the hosts are Sentinels; and whether they need the same log-in.
    service: str = ""
    has_sentinel_login: bool = False

    def __str__(self) -> str:
        hosts = ",".join(f"{host}:{port}" for host, port in self.hosts)
        return f"{self.service} of {hosts}" if self.service else f"{hosts}/{self.database}"

    def connect(self) -> Client:
        """Return a client. Connections are opened by the first command; a cluster is contacted at once."""
        from redis import Redis, RedisCluster, cluster, sentinel
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        # Without types in redis-py.
        cluster_node: Any = cluster.ClusterNode
        sentinel_class: Any = sentinel.Sentinel
        login: dict[str, Any] = {"username": self.user or None, "password": self.password or None}
        common: dict[str, Any] = {"socket_timeout": _TIMEOUT, "socket_connect_timeout": _TIMEOUT, **self._tls()}
        if self.is_cluster:
            nodes = [cluster_node(host, port) for host, port in self.hosts]
            return RedisCluster(startup_nodes=nodes, **login, **common)
        # The job waits and repeats a batch: one immediate retry is enough here.
        common["retry"] = Retry(NoBackoff(), 1)
        if self.service:
            sentinel_login = login if self.has_sentinel_login else {}
            sentinels = sentinel_class(list(self.hosts), sentinel_kwargs={**common, **sentinel_login}, **common)
            master: Redis = sentinels.master_for(self.service, db=self.database, **login)
            return master
        host, port = self.hosts[0]
        return Redis(host, port, self.database, **login, **common)

    def _tls(self) -> dict[str, Any]:
        if not self.is_tls:
            return {}
        return {
            "ssl": True,
            "ssl_cert_reqs": "required",
            "ssl_check_hostname": True,
            "ssl_ca_certs": self.ca or None,
            "ssl_certfile": self.cert or None,
            "ssl_keyfile": self.cert_key or None,
        }


def parse_redis(url: str, options: Options) -> RedisAddress:
    """Parse `redis://user:password@host:port,…/database` and its options; errors do not show the address."""
    service = options.text("sentinel")
    files = {name: options.text(name) for name in ("ca", "cert", "cert_key")}
    is_cluster = options.yes_no("cluster", False)
    is_insecure = options.yes_no("insecure", False)
    has_sentinel_login = options.yes_no("sentinel_login", False)
    try:
        parts = urlsplit(url)
        hosts = _hosts(parts, _SENTINEL_PORT if service else _PORT)
        database = int(parts.path.strip("/") or 0)
    except ValueError:
        hosts = ()
    if not hosts or parts.scheme not in ("redis", "rediss"):
        raise ConfigError(
            "invalid address of the Redis sink",
            cure="write redis://host:6379/0 (rediss:// for TLS), with special characters of the password as %40",
        )
    if is_cluster and (service or database):
        raise ConfigError("cluster=yes cannot be combined with sentinel or a database", cure="remove one of them")
    if len(hosts) > 1 and not (is_cluster or service):
        raise ConfigError("several Redis hosts need cluster=yes or sentinel=NAME", cure="add one of these options")
    if any(files.values()) and parts.scheme != "rediss":
        raise ConfigError("ca, cert and cert_key need TLS", cure="write rediss://")
    login = parts.netloc.rpartition("@")[0]
    user, _, password = login.partition(":")
    if password and parts.scheme != "rediss":
        names = [host for host, _ in hosts]
        check_transport("the Redis sink", names, encrypted="rediss://", insecure=is_insecure)
    return RedisAddress(
        hosts,
        database,
        unquote(user),
        unquote(password),
        is_tls=parts.scheme == "rediss",
        **files,
        is_cluster=is_cluster,
        service=service,
        has_sentinel_login=has_sentinel_login,
    )


def _hosts(parts: SplitResult, default_port: int) -> tuple[tuple[str, int], ...]:
    hosts = [urlsplit(f"//{text}") for text in parts.netloc.rpartition("@")[2].split(",")]
    if not all(host.hostname for host in hosts):
        return ()
    return tuple((host.hostname or "", host.port or default_port) for host in hosts)
