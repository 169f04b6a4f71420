"""virtqemud, libvirt's daemon for QEMU alone, which Debian doesn't package: it has libvirtd, for everything at once.

It is built from the release's own sources, and linked with the libraries of the release's own packages; its driver is
their module. So it is the daemon alone that differs. Standard library only, as `roots`.
"""

from __future__ import annotations

import shlex

_PACKAGES = (
    *("libglib2.0-dev", "libgnutls28-dev", "libjson-c-dev", "libtirpc-dev", "libxml2-dev", "libxml2-utils"),
    *("meson", "ninja-build", "rpcsvc-proto", "xsltproc", "xz-utils"),
)
_LIBRARIES = "gio-2.0 gobject-2.0 glib-2.0 gnutls libtirpc libxml-2.0"
# Of libvirt's sources the daemon's are compiled, ten files of some 400. The archive is all that is wanted of the source
# package: apt has checked its sum, whether or not the mirror has the rest.
_BUILD = f"""
sed 's/^deb /deb-src /' /etc/apt/sources.list >/etc/apt/sources.list.d/sources.list
apt-get update --quiet
apt-get install --yes --quiet {" ".join(_PACKAGES)}
mkdir /build && cd /build
apt-get source --download-only libvirt || true
tar --extract --strip-components=1 --file libvirt_*.orig.tar.xz
meson setup out -Dauto_features=disabled -Dsystem=true -Ddocs=disabled -Dtests=disabled \\
    -Ddriver_remote=enabled -Ddriver_libvirtd=enabled -Ddriver_qemu=enabled -Djson_c=enabled
cd out
admin=src/admin/libvirt_admin_driver.a
ninja $admin $(ninja -t query src/virtqemud | grep -o 'src/virtqemud.p/.*[.]o')
gcc -o /usr/sbin/virtqemud src/virtqemud.p/*.o $admin \\
    $(ls /usr/lib/*/libvirt.so.0 /usr/lib/*/libvirt-qemu.so.0 /usr/lib/*/libvirt-lxc.so.0) \\
    $(pkg-config --libs {_LIBRARIES})
virtqemud --version
cd / && rm -r /build /etc/apt/sources.list.d/sources.list
"""

HOOK = f'--customize-hook=chroot "$1" sh -euc {shlex.quote(_BUILD)}'
"""mmdebstrap's option that adds it to a root, in a minute."""
