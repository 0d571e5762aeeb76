#!/usr/bin/env python3
"""What `cmake --install` puts into a prefix works from there: the program, the mount helper's place,
man pages, completions, and the library for a C++ program that says find_package(ckfs)."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("CKFS_BUILD", ROOT / "build/release"))
SOURCE = ROOT / "tests/data/hf/deepseek-v3-fp8/source"


def run(*command, **options):
    done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
    if done.returncode != 0:
        raise AssertionError(f"{command}: exit {done.returncode}\n{done.stdout.decode()}")
    return done.stdout


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.work = pathlib.Path(tempfile.mkdtemp(prefix="ckfs-install-"))
        cls.addClassCleanup(shutil.rmtree, cls.work)
        cls.prefix = cls.work / "prefix"
        cls.install(cls.prefix, cls.work / "prefix.txt")

    @classmethod
    def install(cls, prefix, manifest):
        """Into `prefix`. The manifest that a person's own installation may have left stays."""
        made = BUILD / "install_manifest.txt"
        before = made.read_bytes() if made.exists() else None
        run("cmake", "--install", BUILD, "--prefix", prefix)
        shutil.copy(made, manifest)
        made.unlink()
        if before is not None:
            made.write_bytes(before)

    def test_program_runs_and_tells_the_version_of_the_project(self):
        version = re.search(r"project\(ckfs VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text())
        self.assertEqual(f"ckfs {version[1]}\n".encode(),
                         run(self.prefix / "bin/ckfs", "--version"))

    def test_program_is_hardened(self):
        program = self.prefix / "bin/ckfs"
        header = run("readelf", "--wide", "--file-header", program).decode()
        self.assertRegex(header, r"Type:\s+DYN")  # position independent
        segments = run("readelf", "--wide", "--program-headers", program).decode()
        self.assertIn("GNU_RELRO", segments)
        self.assertRegex(segments, r"GNU_STACK .* RW ")  # not executable
        dynamic = run("readelf", "--wide", "--dynamic", program).decode()
        self.assertRegex(dynamic, r"FLAGS_1\).*NOW")
        symbols = run("readelf", "--wide", "--dyn-syms", program).decode()
        self.assertIn("__stack_chk_fail", symbols)
        self.assertRegex(symbols, r"_chk@GLIBC")  # _FORTIFY_SOURCE
        self.assertIn("__glibcxx_assert_fail", symbols)

    def test_has_what_an_administrator_needs(self):
        for path in ("sbin/mount.ckfs", "share/man/man1/ckfs.1.gz",
                     "share/man/man5/ckfs-recipe.5.gz", "share/man/man8/mount.ckfs.8.gz",
                     "share/bash-completion/completions/ckfs", "share/zsh/site-functions/_ckfs",
                     "share/fish/vendor_completions.d/ckfs.fish",
                     "share/doc/ckfs/examples/ckfs.logrotate", "share/ckfs/prometheus/README.md",
                     "share/ckfs/prometheus/example.prom"):
            with self.subTest(path=path):
                self.assertGreater((self.prefix / path).stat().st_size, 0)
        self.assertTrue(os.access(self.prefix / "sbin/mount.ckfs", os.X_OK))

    def test_the_unit_names_the_program_that_was_installed(self):
        unit = (self.prefix / "lib/systemd/system/ckfs@.service").read_text()
        self.assertEqual([str(self.prefix / "bin/ckfs")] * 2,
                         re.findall(r"^Exec\w+=-?(\S+)", unit, re.M))

    def test_links_of_the_documents_lead_to_documents(self):
        top = self.prefix / "share/doc/ckfs"
        pages = [top / "README.md", *(top / "docs").glob("*.md")]
        self.assertGreater(len(pages), 5)
        for page in pages:
            for link in re.findall(r"\]\(([^)#:]+\.md)(?:#[^)]*)?\)", page.read_text()):
                with self.subTest(page=page.name, link=link):
                    self.assertTrue((page.parent / link).is_file())

    def test_a_package_has_what_lies_outside_of_its_prefix(self):
        root = self.work / "root"
        run("cmake", "--install", BUILD, "--prefix", "/usr", "--component", "runtime",
            env={**os.environ, "DESTDIR": str(root)})
        unit = (root / "usr/lib/systemd/system/ckfs@.service").read_text()
        self.assertIn("ExecStart=/usr/bin/ckfs mount ", unit)
        self.assertTrue((root / "etc/ckfs").is_dir())
        self.assertTrue((root / "usr/share/zsh/vendor-completions/_ckfs").is_file())
        # dpkg asks before it replaces what an administrator has changed.
        listed = (ROOT / "cmake/debian/conffiles").read_text().split()
        self.assertEqual(listed, ["/" + str(path.relative_to(root))
                                  for path in (root / "etc").rglob("*") if path.is_file()])

    def test_what_was_installed_can_be_removed(self):
        prefix = self.work / "removed"
        (prefix / "share/man/man1").mkdir(parents=True)
        (prefix / "share/man/man1/other.1").write_text("another program's\n")
        manifest = self.work / "manifest.txt"
        self.install(prefix, manifest)
        uninstall = ["cmake", f"-DMANIFEST={manifest}", "-P", ROOT / "cmake/uninstall.cmake"]
        run(*uninstall)
        self.assertEqual([prefix / "share/man/man1/other.1"],
                         [path for path in prefix.rglob("*") if not path.is_dir()])
        self.assertFalse(list(prefix.rglob("ckfs")))
        with self.assertRaisesRegex(AssertionError, r"nothing was\s+installed from here"):
            run(*uninstall)

    def test_library_serves_a_program_that_finds_the_package(self):
        build = self.work / "example"
        run("cmake", "-S", ROOT / "tests/example", "-B", build, "-G", "Ninja",
            f"-DCMAKE_PREFIX_PATH={self.prefix}", "-DCMAKE_BUILD_TYPE=Release")
        run("cmake", "--build", build)
        told = run(build / "ckfs-example", SOURCE).decode()
        self.assertIn("bf16-safetensors", told)
        copy = self.work / "copy"
        # Its progress goes to stderr.
        sums = subprocess.run([build / "ckfs-copy", SOURCE, "bf16-safetensors", copy], check=True,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
        self.assertEqual(len([path for path in copy.rglob("*") if path.is_file()]),
                         len(sums.splitlines()))
        subprocess.run(["sha256sum", "--check", "--strict", "--quiet"], input=sums, cwd=copy,
                       check=True)

    def test_headers_of_the_library_name_no_path_of_this_tree(self):
        for path in self.prefix.rglob("*.cmake"):
            self.assertNotIn(str(ROOT), path.read_text(), path)
        self.assertEqual(sorted(p.name for p in (ROOT / "include/ckfs").iterdir()),
                         sorted(p.name for p in (self.prefix / "include/ckfs").iterdir()))


class Layers(unittest.TestCase):
    """The layering check fails when it should."""

    def test_include_of_a_folder_below_is_told_with_its_rule(self):
        with tempfile.TemporaryDirectory(prefix="ckfs-layers-") as work:
            tree = pathlib.Path(work)
            (tree / "tests/lint").mkdir(parents=True)
            shutil.copy(ROOT / "tests/lint/layers", tree / "tests/lint/layers")
            (tree / "src").mkdir()
            shutil.copy(ROOT / "src/CMakeLists.txt", tree / "src/CMakeLists.txt")
            for folder in ("base", "engine"):
                (tree / "src" / folder).mkdir()
            (tree / "src/engine/good.cc").write_text('#include "base/error.h"\n')
            (tree / "src/base/bad.cc").write_text('#include <string>\n#include "engine/engine.h"\n')
            done = subprocess.run([sys.executable, tree / "tests/lint/layers"],
                                  stdout=subprocess.PIPE, text=True)
            self.assertEqual(1, done.returncode)
            self.assertEqual(['src/base/bad.cc:2: "engine/engine.h": base may include only base'],
                             done.stdout.splitlines())
            (tree / "src/base/bad.cc").unlink()
            for folder in ("api", "cli"):
                (tree / "src" / folder).mkdir()
                (tree / f"src/{folder}/some.cc").write_text('#include "api/checkpoint_impl.h"\n')
            done = subprocess.run([sys.executable, tree / "tests/lint/layers"],
                                  stdout=subprocess.PIPE, text=True)
            self.assertEqual(1, done.returncode)
            self.assertEqual(
                ['src/cli/some.cc:1: "api/checkpoint_impl.h": only api itself includes it'],
                done.stdout.splitlines())


if __name__ == "__main__":
    unittest.main()
