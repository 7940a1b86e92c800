"""Spark's commits to Delta, created if absent: of all drivers one makes each version, whatever stood still meanwhile.

Delta's own log stores look whether a version exists, and then write it in any case: on S3 by a put, on a file system by
a rename. A driver that was suspended in between overwrites its successor's commit. A file system refuses that to a hard
link, and S3 to a conditional put; Hadoop sends one if a program asks for it, which no setting does. Delta takes a log
store by the name of a Java class, and the compiler that Spark has for its queries makes ours when a job starts.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from py4j.java_gateway import JVMView
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from dblog_core.errors import LakeError

_SETTINGS = "spark.delta.logStore."
_SCHEMES = ("file", "s3")
_PACKAGE = "dblog"
_NAME = "CreateIfAbsentLogStore"
_ALL = f"{_SETTINGS}class"
_EXCLUDING = {f"{_PACKAGE}.{_NAME}", "io.delta.storage.S3DynamoDBLogStore"}
"""Log stores of which one driver makes a version."""
_CONFLICT = "ConditionalRequestConflict"
"""S3's code for a put that met another one of the same key, and may be sent again."""
_ATTEMPTS = 5
_WAIT_MS = 200

_SOURCE = f"""
package {_PACKAGE};

import java.io.ByteArrayOutputStream;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.io.OutputStream;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.OpenOption;
import java.nio.file.Paths;
import java.nio.file.StandardOpenOption;
import java.util.Arrays;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Abortable;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

public class {_NAME} extends io.delta.storage.HadoopFileSystemLogStore {{
    public {_NAME}(Configuration conf) {{
        super(conf);
    }}

    public Boolean isPartialWriteVisible(Path path, Configuration conf) throws IOException {{
        return Boolean.valueOf(isLocal(path.getFileSystem(conf)));
    }}

    public void write(Path path, Iterator lines, Boolean overwrite, Configuration conf) throws IOException {{
        FileSystem files = path.getFileSystem(conf);
        if (overwrite.booleanValue() && isLocal(files)) {{
            writeWithRename(path, lines, overwrite, conf);
            return;
        }}
        ByteArrayOutputStream text = new ByteArrayOutputStream();
        while (lines.hasNext()) {{
            text.write((lines.next() + "\\n").getBytes(StandardCharsets.UTF_8));
        }}
        byte[] data = text.toByteArray();
        if (overwrite.booleanValue()) {{
            OutputStream out = files.create(path, true);
            out.write(data);
            out.close();
            return;
        }}
        int attempt = 1;
        while (!isMade(files, path, data, attempt)) {{
            attempt++;
        }}
    }}

    private static boolean isLocal(FileSystem files) {{
        return files.getScheme().equals("file");
    }}

    private boolean isMade(FileSystem files, Path path, byte[] data, int attempt) throws IOException {{
        try {{
            if (isLocal(files)) {{
                link(path, data);
            }} else {{
                put(files, path, data);
            }}
            return true;
        }} catch (IOException error) {{
            // A client that repeats a request meets what its first attempt has made. Each commit has an id of its own,
            // so no other writer has the same bytes.
            byte[] present = read(files, path);
            if (present != null && !Arrays.equals(present, data)) {{
                throw new FileAlreadyExistsException(path.toString());
            }}
            if (present == null && !isToBeTriedAgain(error, attempt)) {{
                throw error;
            }}
            return present != null;
        }}
    }}

    private static boolean isToBeTriedAgain(IOException error, int attempt) throws IOException {{
        if (attempt == {_ATTEMPTS} || !String.valueOf(error.getMessage()).contains("{_CONFLICT}")) {{
            return false;
        }}
        try {{
            Thread.sleep({_WAIT_MS}L * attempt);
        }} catch (InterruptedException stopped) {{
            Thread.currentThread().interrupt();
            throw new InterruptedIOException(stopped.getMessage());
        }}
        return true;
    }}

    private static void put(FileSystem files, Path path, byte[] data) throws IOException {{
        FSDataOutputStreamBuilder builder = files.createFile(path);
        builder.overwrite(false);
        builder.must("fs.option.create.conditional.overwrite", true);
        OutputStream out = (OutputStream) builder.build();
        try {{
            out.write(data);
        }} catch (IOException error) {{
            ((Abortable) out).abort(); // close() would make an object of what there is
            throw error;
        }}
        out.close();
    }}

    private void link(Path path, byte[] data) throws IOException {{
        java.nio.file.Path target = Paths.get(path.toUri().getPath(), new String[0]);
        java.nio.file.Path temporary = Paths.get(createTempPath(path).toUri().getPath(), new String[0]);
        try {{
            OpenOption[] fresh = {{StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE}};
            FileChannel channel = FileChannel.open(temporary, fresh);
            try {{
                ByteBuffer left = ByteBuffer.wrap(data);
                while (left.hasRemaining()) {{
                    channel.write(left);
                }}
                channel.force(true);
            }} finally {{
                channel.close();
            }}
            Files.createLink(target, temporary);
        }} finally {{
            Files.deleteIfExists(temporary);
        }}
        FileChannel directory = FileChannel.open(target.getParent(), new OpenOption[] {{StandardOpenOption.READ}});
        try {{
            directory.force(true);
        }} finally {{
            directory.close();
        }}
    }}

    private static byte[] read(FileSystem files, Path path) throws IOException {{
        FSDataInputStream in;
        try {{
            in = files.open(path);
        }} catch (FileNotFoundException absent) {{
            return null;
        }}
        try {{
            return in.readAllBytes();
        }} finally {{
            in.close();
        }}
    }}
}}
"""


def install(spark: SparkSession) -> None:
    """Has this driver's commits created if absent. A log store that the user has set for a scheme stays for that one.

    Raises LakeError where the driver cannot have it: commits without it are not safe.
    """
    jvm = _jvm(spark)
    settings = _settings(jvm)
    # Delta takes no store of a scheme beside one of all schemes.
    schemes = [scheme for scheme in _SCHEMES if _setting(scheme) not in settings and _ALL not in settings]
    if not schemes:
        return
    try:
        _load(jvm)
    except Py4JError as error:
        raise LakeError(
            f"Spark's driver does not take the log store of dblog: {error}",
            fix=f"set {_SETTINGS}SCHEME.impl in [spark.conf] to a log store whose commits exclude those of other "
            "drivers; SCHEME is that of [lake] path, file or s3",
        ) from error
    for scheme in schemes:
        _conf(jvm).set(_setting(scheme), f"{_PACKAGE}.{_NAME}")


def check_excludes(spark: SparkSession, lake: str) -> None:
    """Raises LakeError unless the log store for `lake`, a path or a URL, is known to exclude other drivers' commits."""
    scheme = lake.split("://")[0] if "://" in lake else "file"
    settings = _settings(_jvm(spark))
    setting = _ALL if _ALL in settings else _setting(scheme)
    if (store := settings.get(setting)) not in _EXCLUDING:
        raise LakeError(
            f"{setting} is {store or 'not set'}: two drivers may both commit one version, and rows are lost",
            where=lake,
            fix=f"remove {setting} from [spark.conf] and from the cluster's settings: dblog brings its own log store",
        )


def _jvm(spark: SparkSession) -> JVMView:
    jvm = spark.sparkContext._jvm
    assert jvm is not None, "the session is one of this process"
    return jvm


def _conf(jvm: JVMView) -> Any:
    """Not the session's settings: Delta asks those that the driver has begun with."""
    return jvm.org.apache.spark.SparkEnv.get().conf()


def _settings(jvm: JVMView) -> dict[str, str]:
    return {pair._1(): pair._2() for pair in _conf(jvm).getAll() if pair._1().startswith(_SETTINGS)}


def _setting(scheme: str) -> str:
    return f"{_SETTINGS}{scheme}.impl"


def _load(jvm: JVMView) -> None:
    """Compiles the class into the class loader of the driver's threads. Raises Py4JError."""
    utils = jvm.org.apache.spark.util.Utils
    loader = utils.getContextOrSparkClassLoader()
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(loader)
    compiler.cook(_SOURCE)
    with tempfile.TemporaryDirectory(prefix="dblog-log-store-") as directory:
        for name, code in compiler.getBytecodes().items():
            file = Path(directory, *name.split(".")).with_suffix(".class")
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(code)
        loader.addURL(jvm.java.io.File(directory).toURI().toURL())
        utils.classForName(f"{_PACKAGE}.{_NAME}", True, False)
