"""Files below a prefix of an S3-compatible bucket: created by conditional puts, errors translated.

An object is whole once its put has returned, and every later read and listing sees it (Amazon's promise since 2020,
which the servers that call themselves compatible repeat). Nothing is ever renamed.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from dblog_core.errors import CorruptSegment, StagingError, StagingUnavailable
from dblog_core.storage import Bytes, Stored

if TYPE_CHECKING:
    from dblog_core.config.settings import S3Config

SCHEME = "s3://"
_TOGETHER = 8  # puts at a time
_ATTEMPTS = 4  # of one request, by the client, and of what it does not try again by itself
_MAKER = "dblog-maker"  # metadata of a created object: whose put it was
_TAKEN = {"PreconditionFailed", "412"}
_MEANWHILE = {"ConditionalRequestConflict", "409"}  # two conditional puts, or one and a delete, at the same moment
_MISSING = {"NoSuchKey", "404", "NotFound"}
_BEYOND = {"InvalidRange", "416"}
_REFUSED = {"InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "TokenRefreshRequired"}
_ELSEWHERE = {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "301", "307"}
_LATER = {"SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded", "RequestTimeout", "QuotaExceeded"}


class S3Storage:
    """The objects below s3://BUCKET/PREFIX. Threads may share it. No request is made before the first call."""

    def __init__(self, bucket: str, prefix: str, *, settings: S3Config) -> None:
        self.bucket = bucket
        self._prefix = prefix.strip("/")
        self._settings = settings
        self._lock = threading.Lock()
        self._connected: Any = None
        self._proven = False

    def url(self, relative: str) -> str:
        """s3://BUCKET/KEY, as in the configuration."""
        return f"{SCHEME}{self.bucket}/{self._key(relative)}".rstrip("/")

    def exists(self, relative: str) -> bool:
        return self._head(self._key(relative)) is not None

    def read(self, relative: str) -> bytes | None:
        """The object's bytes; None if there is no such object."""
        return self._get(self._key(relative))

    def read_part(self, relative: str, start: int, size: int) -> bytes | None:
        """`size` bytes from `start` on, fewer where the object ends before; None if there is no such object."""
        if size <= 0:
            return b"" if self.exists(relative) else None
        try:
            return self._get(self._key(relative), Range=f"bytes={start}-{start + size - 1}")
        except _Beyond:
            return b""

    def _get(self, key: str, **options: Any) -> bytes | None:
        for attempt in range(_ATTEMPTS):
            try:
                with self._translate_errors(key):
                    return bytes(self._client.get_object(Bucket=self.bucket, Key=key, **options)["Body"].read())
            except _Missing:
                return None
            except StagingUnavailable:  # also where the connection breaks within the body, which the client leaves
                if attempt + 1 == _ATTEMPTS:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def names(self, directory: str) -> Iterator[str]:
        """Names in a directory, in no order; none if it is missing."""
        prefix = self._directory(directory)
        for page in self._pages(prefix, Delimiter="/"):
            yield from (entry["Key"].removeprefix(prefix) for entry in page.get("Contents", ()))
            yield from (entry["Prefix"].removeprefix(prefix).rstrip("/") for entry in page.get("CommonPrefixes", ()))

    def files(self, directory: str) -> Iterator[Stored]:
        """All files below a directory, at any depth, in no order; none if it is missing."""
        root = self._directory("")
        for page in self._pages(self._directory(directory)):
            for entry in page.get("Contents", ()):
                yield Stored(entry["Key"].removeprefix(root), entry["Size"], entry["LastModified"].timestamp())

    def create(self, relative: str, data: Bytes) -> bool:
        """Makes the file whole, or not at all; False if the name is taken already.

        Raises StagingError on a server that does not keep to `If-None-Match`: there two captures could both succeed.
        """
        key = self._key(relative)
        self._prove()
        return self._create(key, data)

    def create_missing(self, files: Mapping[str, Bytes]) -> None:
        """Makes those of the files whose names are not taken, each whole or not at all. Under every name a file is
        durable then."""
        keys = {self._key(relative): data for relative, data in files.items()}
        self._prove()
        for fault in _faults(self._create, keys):
            raise fault

    def settle(self, relative: str) -> None:
        """An object is durable once it can be seen."""
        self._key(relative)

    def replace(self, relative: str, data: Bytes) -> None:
        """Writes the file, whole at any moment, over an older one of the name."""
        self._put(self._key(relative), data)

    def write_directory(self, directory: str, files: Mapping[str, Bytes]) -> None:
        """Makes a new directory with these files. Where that fails, what was written is removed again."""
        keys = {self._key(f"{directory}/{name}"): data for name, data in files.items()}
        faults = _faults(self._put, keys)
        if not faults:
            return
        for key in keys:
            # What cannot be removed is named by no manifest and harms nobody.
            with contextlib.suppress(StagingError):
                self._delete(key)
        raise faults[0]

    def remove(self, relative: str) -> None:
        """Removes the file; no error if it is gone already."""
        self._delete(self._key(relative))

    def _key(self, relative: str) -> str:
        """The object's key. Raises CorruptSegment for a name that would lead out of the root."""
        pure = PurePosixPath(relative)
        if pure.is_absolute() or ".." in pure.parts or "\0" in relative:
            raise CorruptSegment(
                f"{relative!r} is not a file below this prefix", where=f"{SCHEME}{self.bucket}/{self._prefix}"
            )
        return "/".join(part for part in (self._prefix, str(pure) if relative else "") if part)

    def _directory(self, relative: str) -> str:
        key = self._key(relative)
        return f"{key}/" if key else ""

    def _create(self, key: str, data: Bytes) -> bool:
        """We and the client try a put again whose answer was lost or says nothing, and may then find our own object:
        `maker` tells."""
        maker = uuid.uuid4().hex
        for _ in range(_ATTEMPTS):
            try:
                self._put(key, data, IfNoneMatch="*", Metadata={_MAKER: maker})
            except _Meanwhile:
                continue
            except _Taken:
                return self._made_by(key, maker)
            return True
        raise StagingUnavailable(
            "others write the same object all the time", where=self._where(key), fix="see who else uses this prefix"
        )

    def _made_by(self, key: str, maker: str) -> bool:
        head = self._head(key)
        if head is None:
            raise StagingUnavailable("the object came and went while it was made", where=self._where(key))
        return bool(head["Metadata"].get(_MAKER) == maker)

    def _prove(self) -> None:
        """Looks once whether the server refuses a second conditional put: an older one would just overwrite."""
        with self._lock:
            if self._proven:
                return
        key = self._key(f"tmp/probe-{uuid.uuid4().hex}")
        try:
            if not self._create(key, b"") or self._create(key, b""):
                raise StagingError(
                    "the server overwrites what a conditional put must leave (`If-None-Match: *`)",
                    where=self._where(key),
                    fix="use a server or a version with conditional writes: without them two captures could both "
                    "write one segment",
                )
        finally:
            self._delete(key)
        with self._lock:
            self._proven = True

    def _put(self, key: str, data: Bytes, **options: Any) -> None:
        with self._translate_errors(key):
            self._client.put_object(
                Bucket=self.bucket, Key=key, Body=_plain(data), **_encryption(self._settings), **options
            )

    def _delete(self, key: str) -> None:
        with contextlib.suppress(_Missing), self._translate_errors(key):
            self._client.delete_object(Bucket=self.bucket, Key=key)

    def _head(self, key: str) -> dict[str, Any] | None:
        try:
            with self._translate_errors(key):
                head: dict[str, Any] = self._client.head_object(Bucket=self.bucket, Key=key)
                return head
        except _Missing:
            return None

    def _pages(self, prefix: str, **options: Any) -> Iterator[Mapping[str, Any]]:
        more: dict[str, str] = {}
        while True:
            with self._translate_errors(prefix):
                page = self._client.list_objects_v2(Bucket=self.bucket, Prefix=prefix, **options, **more)
            yield page
            if not page.get("IsTruncated"):
                return
            more = {"ContinuationToken": page["NextContinuationToken"]}

    @property
    def _client(self) -> Any:
        with self._lock:
            if self._connected is None:
                self._connected = _client(self._settings)
            return self._connected

    def _where(self, key: str) -> str:
        return f"{SCHEME}{self.bucket}/{key}"

    @contextlib.contextmanager
    def _translate_errors(self, key: str) -> Iterator[None]:
        """Turns the client's errors into ours, with the object and the way on."""
        from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError

        try:
            yield
        except ClientError as error:
            raise _translation(error.response, self.bucket, self._where(key)) from error
        except (NoCredentialsError, PartialCredentialsError) as error:
            raise StagingError(
                "there are no credentials for the object store",
                where=self._where(key),
                fix="give [s3] access_key and secret_key, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
            ) from error
        except (BotoCoreError, OSError) as error:
            raise StagingUnavailable(
                f"the object store does not answer: {error}",
                where=self._where(key),
                fix="see that [s3] endpoint is right, and the server up",
            ) from error


def _faults(put: Callable[[str, Bytes], object], objects: Mapping[str, Bytes]) -> list[BaseException]:
    """Puts the objects, some at the same time; what was raised meanwhile."""
    with ThreadPoolExecutor(_TOGETHER, thread_name_prefix="s3") as pool:
        puts = [pool.submit(put, key, data) for key, data in objects.items()]
    return [fault for put in puts if (fault := put.exception()) is not None]


class _Missing(StagingError):
    """There is no such object."""


class _Beyond(StagingError):
    """The object ends before the part that was asked for."""


class _Meanwhile(StagingError):
    """Another conditional request of the same object was under way: nothing is written."""


class _Taken(StagingError):
    """There is such an object."""


def _translation(response: Mapping[str, Any], bucket: str, where: str) -> StagingError:
    code = str(response["Error"].get("Code", ""))
    about = response.get("ResponseMetadata", {})
    status = int(about.get("HTTPStatusCode", 0))
    message = f"{code}: {response['Error'].get('Message', '')}".rstrip(": ")
    if code == "NoSuchBucket":
        return StagingError(f"there is no bucket {bucket}", where=where, fix="make it, or correct the path")
    if code in _MISSING:
        return _Missing(message, where=where)
    if code in _BEYOND:
        return _Beyond(message, where=where)
    if code in _TAKEN:
        return _Taken(message, where=where)
    if code in _MEANWHILE:
        return _Meanwhile(message, where=where)
    if code in _REFUSED:
        return StagingError(
            f"the object store refuses the credentials: {message}",
            where=where,
            fix="correct [s3] access_key and secret_key",
        )
    if code in _ELSEWHERE:
        return StagingError(f"the bucket is elsewhere: {message}", where=where, fix="correct [s3] region or endpoint")
    if code == "NotImplemented" or status == 501:
        return StagingError(
            f"the server cannot do that: {message}",
            where=where,
            fix="use a server or a version with conditional writes",
        )
    if code in _LATER or status >= 500 or status == 429:
        return StagingUnavailable(f"the object store does not serve: {message}", where=where, fix="see to the server")
    return StagingError(
        f"cannot be used: {message}",
        where=where,
        fix="give these credentials GetObject, PutObject and DeleteObject below the prefix, ListBucket on the bucket",
    )


def _encryption(settings: S3Config) -> dict[str, str]:
    arguments = {"ServerSideEncryption": settings.encryption or "", "SSEKMSKeyId": settings.kms_key}
    return {name: value for name, value in arguments.items() if value}


def _client(settings: S3Config) -> Any:
    import botocore.session
    from botocore.config import Config

    secret = settings.secret_key.get_secret_value()
    return botocore.session.get_session().create_client(
        "s3",
        endpoint_url=settings.endpoint or None,
        region_name=settings.region or None,
        aws_access_key_id=settings.access_key or None,
        aws_secret_access_key=secret or None,
        verify=str(settings.tls_ca) if settings.tls_ca else None,
        config=Config(
            connect_timeout=5,
            read_timeout=30,
            max_pool_connections=4 * _TOGETHER,
            retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
            # The signature covers the bytes; checksums beside it are more than some compatible servers understand.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={"addressing_style": "path" if settings.path_style else "virtual", "payload_signing_enabled": True},
        ),
    )


def _plain(data: Bytes) -> bytes:
    return data if isinstance(data, bytes) else bytes(data.to_pybytes())
