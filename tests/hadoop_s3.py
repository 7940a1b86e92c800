"""How a Spark session of tests reaches s3:// paths: a reader of the lake, as users have it."""

from __future__ import annotations

from pyspark.sql import SparkSession

from dblog_core.config.settings import S3Config

_ENCRYPTION = {"AES256": "AES256", "aws:kms": "SSE-KMS", "aws:kms:dsse": "DSSE-KMS"}
"""As Hadoop's S3A names what S3 does."""


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
