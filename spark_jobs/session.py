"""The one Spark session of a job: set up by spark-submit, or by tests with the same settings
(`dblog_core.lake.spark_submit`)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from dblog_core.config.settings import S3Config

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
_ENCRYPTION = {"AES256": "AES256", "aws:kms": "SSE-KMS", "aws:kms:dsse": "DSSE-KMS"}
"""As Hadoop's S3A names what S3 does."""


def open_session(conf: Mapping[str, str] | None = None, *, name: str = "dblog") -> SparkSession:
    """The session of this process. `conf` only where no spark-submit has given the settings. Raises LakeError where its
    commits would not be safe."""
    from pyspark.sql import SparkSession

    from spark_jobs import delta_log_store

    builder = SparkSession.builder.appName(name)
    for key, value in (conf or {}).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    delta_log_store.install(spark)
    return spark


class LateSession:
    """Stands for a session that starts when something first asks it for anything, in whichever thread."""

    def __init__(
        self, start: Callable[[], SparkSession], settings: Mapping[str, str], first: LateSession | None = None
    ) -> None:
        """`first`: the session from which this one is made; None: it is the first."""
        self.settings = settings
        self._first = first or self
        self._start = start
        self._lock = threading.Lock()
        self._session: SparkSession | None = None

    @property
    def has_started(self) -> bool:
        """Whether Spark has started."""
        return self._first._session is not None

    def start(self) -> SparkSession:
        """The session itself."""
        with self._lock:
            if self._session is None:
                self._session = self._start()
            return self._session

    def __getattr__(self, name: str) -> Any:
        return getattr(self.start(), name)

    def newSession(self) -> SparkSession:  # noqa: N802 - Spark's name
        """A session of its own settings, which starts as late."""
        start = self._first.start
        return cast("SparkSession", LateSession(lambda: start().newSession(), self.settings, self._first))


def late_session(start: Callable[[], SparkSession], settings: Mapping[str, str]) -> SparkSession:
    """A session that `start` returns when something first needs it; `settings`: with which it starts, beside our own.
    What `start` raises is raised there, each time."""
    return cast("SparkSession", LateSession(start, settings))


def has_started(spark: SparkSession) -> bool:
    """Whether Spark has started, so that its work costs no start."""
    return not isinstance(spark, LateSession) or spark.has_started


def settings_of(spark: SparkSession) -> Mapping[str, str]:
    """The settings of users that Spark has started with, or starts with."""
    if isinstance(spark, LateSession):
        return spark.settings
    return dict(spark.sparkContext.getConf().getAll())


def reach_s3(spark: SparkSession, settings: S3Config) -> None:
    """From now on the session, and its executors, reach s3:// paths, by Hadoop's S3A. So no secret is in an argument or
    in a setting that Spark shows."""
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    hadoop.set("fs.s3.impl", "org.apache.hadoop.fs.s3a.S3AFileSystem")
    for key, value in s3a(settings).items():
        hadoop.set(f"fs.s3a.{key}", value)


def s3a(settings: S3Config) -> dict[str, str]:
    """The settings as Hadoop's S3A names them; it finds alone what is left out, like our own client."""
    options = {
        "path.style.access": str(settings.path_style).lower(),
        "input.stream.type": "classic",  # Parquet reads few ranges of a file, and knows which
        "change.detection.mode": "none",  # every object is written once; what is overwritten is read whole
    }
    if settings.endpoint:
        options["endpoint"] = settings.endpoint
        options["connection.ssl.enabled"] = str(settings.endpoint.startswith("https://")).lower()
        options["endpoint.region"] = settings.region or "us-east-1"  # compatible servers take any
    elif settings.region:
        options["endpoint.region"] = settings.region
    if settings.encryption:
        options["encryption.algorithm"] = _ENCRYPTION[settings.encryption]
    if settings.kms_key:
        options["encryption.key"] = settings.kms_key
    if settings.access_key:
        options["aws.credentials.provider"] = "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"
        options["access.key"] = settings.access_key
        options["secret.key"] = settings.secret_key.get_secret_value()
    return options
