"""The configuration as people write it."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcherkit.errors import UNREADABLE_FILE, LauncherkitError, NotInstalled, SeveralErrors
from launcherkit_plugin.config.reading import read_config, read_layout
from launcherkit_plugin.devices.selectors import with_auto
from launcherkit_plugin.model.config import (
    CardHealth,
    CdiConfig,
    Config,
    ContainerUse,
    ContainerVariable,
    DraConfig,
    FabricConfig,
    GpuInstances,
    LayoutEntry,
    Names,
    PciRule,
    ReleaseProgram,
    Selector,
    Sharing,
    UsbRule,
    UsbSelector,
    VfSettings,
    VgpuConfig,
    VgpuRule,
)
from launcherkit_plugin.model.errors import (
    BAD_PLUGIN_CONFIG,
    CDI_KIND_REFUSED,
    EMPTY_PLUGIN_CONFIG,
    NAME_CLASH,
    NO_NVML,
)
from tests.request.test_policy_file import HOSTILE
from tests.support.errors import raises_code
from tests.support.provoked import provoked

FULL = """\
resources:
  - name: nvidia.com/GA102
    select:
      - vendors: [10de, 0x1002]
        devices: [2204]
        models: ["10DE:2204"]
        classes: [0300, 12, 0x030000]
        subsystems: ["1458:403b"]
        addresses: ["e1:00.0", "0000:41:*", "??:00.[01]"]
        drivers: [vfio-pci, none]
        numaNodes: [0, 1]
        virtual: no
    exclude: [{addresses: ["0000:e1:00.1"]}]
    siblings: group
    environment: {prefix: PCI_RESOURCE_, listSiblings: true}
    bind: true
    driver: auto
    release: {command: [/opt/clean, --all], timeout: 20}
    companion: true
    whenBound: true
  - {select: [{drivers: [nvidia]}], dra: true}
  - {select: [{virtual: yes}], bind: on-demand, bindSeconds: 5, graceSeconds: 0, giveBack: never, release: reset,
     sameDevice: required, keepFor: 600}
  - select: [{addresses: ["03:00.0"]}]
    exclude: [{virtual: yes}]
    virtualFunctions: {count: 4, driver: vfio-pci, autoprobe: no, mac: "02:00:00:00:10:0A", trust: yes, spoofcheck: no,
                       program: {command: [/opt/vfs]}}
  - name: nvidia.com/gpu
    select: [{vendors: [10de]}]
    use: container
    container: {by: cdi, nodes: [/dev/nvidiactl], cdiKind: example.com/gpu, cdiNames: index}
    sharing: {replicas: 4, renameByDefault: true, failRequestsGreaterThanOne: true, allocationPolicy: packed}
    health: {xid: yes, ignoredXids: [31, 13]}
  - select: [{vendors: [1002]}]
    use: any
    names: {vm: a/VM, kata: a/KATA, container: a/C}
    container: {by: environment, passDeviceSpecs: true}
    environment: {void: false}
vgpu:
  mediatedDevices:
    - {types: [GRID T4-1Q], name: nvidia.com/SMALL, mode: dynamic, parents: ["0000:01:*"], prefix: X, dra: true}
  virtualFunctions: [{types: ["*"]}]
  layout: [{parent: "#0", type: GRID T4-1Q, count: 4}, {parent: "0000:02:*", type: nvidia-222},
    {parent: "#1", gpuInstances: [{profile: 3g.20gb, count: 1}, {profile: 19, count: 2}]}]
  spread: [nvidia-223]
  graceSeconds: 5
aliases: {"10DE:2204": BIG, GRID T4-1Q: SMALL}
domains: {1af4: virtio.example.com, 1002: example.com}
pciIds: /usr/share/pci.ids
nodes: cdev
cdi: {folder: /run/cdi, only: true, annotations: true, kind: resource, environment: false}
rescanSeconds: 2.5
dra: {driver: gpu.example.com, environment: false, all: false, evict: true, bindingConditions: yes}
usb:
  - {name: example.com/KEY, selectors: [{vendor: 0529, product: "0x0001", serial: "0012"}], dra: yes}
  - {name: example.com/SET, selectors: [{vendor: 08E6, product: 3437}, {vendor: 0529, product: 0002}]}
fabric: {address: "127.0.0.1:6667", library: /opt/libnvfm.so, modules: {"3": "1b:00.0", "12": "0000:C3:00.0"}}
"""


SELECTED = Selector(
    vendors=frozenset({0x10DE, 0x1002}),
    devices=frozenset({0x2204}),
    models=frozenset({(0x10DE, 0x2204)}),
    classes=("0300", "12", "030000"),
    subsystems=frozenset({(0x1458, 0x403B)}),
    addresses=("0000:e1:00.0", "0000:41:*", "0000:??:00.[01]"),
    drivers=frozenset({"vfio-pci", "none"}),
    numa_nodes=frozenset({0, 1}),
    virtual=False,
)
"""What the first selector of `FULL` says."""

ON_DEMAND = PciRule(select=(Selector(virtual=True),), bind="on-demand")
FABRIC = FabricConfig(
    address="127.0.0.1:6667", library="/opt/libnvfm.so", modules={3: "0000:1b:00.0", 12: "0000:c3:00.0"}
)
VGPUS = VgpuConfig(
    layout=(
        LayoutEntry("#0", "GRID T4-1Q", 4),
        LayoutEntry("0000:02:*", "nvidia-222"),
        LayoutEntry("#1", gpu_instances=(GpuInstances("3g.20gb", 1), GpuInstances("19", 2))),
    ),
    spread=("nvidia-223",),
    mdevs=(VgpuRule(("GRID T4-1Q",), "nvidia.com/SMALL", "dynamic", ("0000:01:*",), dra=True, prefix="X"),),
    vfs=(VgpuRule(("*",), prefix="PCI_RESOURCE"),),
    grace_seconds=5.0,
)
"""What `FULL` says of vGPUs."""


@pytest.fixture(autouse=True)
def with_the_binding_of_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is said of GPU instances is read where it is installed, whether it is here or not."""
    monkeypatch.setattr("launcherkit_plugin.config.reading.find_spec", lambda _: True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "plugin.yaml"


def read(path: Path, text: str) -> Config:
    path.write_text(text)
    return read_config(str(path)).config


def reported(path: Path, text: str) -> list[str]:
    """The messages of all errors, without the name of the file."""
    path.write_text(text)
    with pytest.raises(LauncherkitError) as raised:
        read_config(str(path))
    assert raised.value.exit_code == 78
    leaves = list(raised.value.leaves())
    assert all(leaf.code in (BAD_PLUGIN_CONFIG.code, NAME_CLASH.code) for leaf in leaves)
    assert all(leaf.message.startswith(str(path)) and "\n" not in leaf.message for leaf in leaves)
    return [leaf.message.removeprefix(f"{path}, ").removeprefix(f"{path}: ") for leaf in leaves]


MAKING = PciRule(
    select=(Selector(addresses=("0000:03:00.0",)),),
    exclude=(Selector(virtual=True),),
    virtual_functions=VfSettings(
        4,
        driver="vfio-pci",
        mac="02:00:00:00:10:0a",
        trust=True,
        spoofcheck=False,
        program=ReleaseProgram(("/opt/vfs",)),
    ),
    environment=ContainerVariable(void=True),
)


def test_every_key_says_its_part(path: Path) -> None:
    assert read(path, FULL) == Config(
        pci=(
            PciRule(
                select=(SELECTED,),
                exclude=(Selector(addresses=("0000:e1:00.1",)),),
                name="nvidia.com/GA102",
                siblings="group",
                environment=ContainerVariable("PCI_RESOURCE", list_siblings=True, void=True),
                bind=True,
                driver="auto",
                release=ReleaseProgram(("/opt/clean", "--all"), 20),
                companion=True,
                when_bound=True,
            ),
            PciRule(
                select=(Selector(drivers=frozenset({"nvidia"})),), dra=True, environment=ContainerVariable(void=True)
            ),
            ON_DEMAND._replace(
                bind_seconds=5,
                grace_seconds=0,
                give_back="never",
                release="reset",
                same_device="required",
                keep_for=600,
                environment=ContainerVariable(void=True),
            ),
            MAKING,
            PciRule(
                select=(Selector(vendors=frozenset({0x10DE})),),
                name="nvidia.com/gpu",
                use="container",
                container=ContainerUse("cdi", ("/dev/nvidiactl",), cdi_kind="example.com/gpu", cdi_names="index"),
                sharing=Sharing(4, rename=True, one_a_request=True, policy="packed"),
                health=CardHealth(True, frozenset({13, 31})),
                environment=ContainerVariable(void=True),
            ),
            PciRule(
                select=(Selector(vendors=frozenset({0x1002})),),
                use="any",
                names=Names("a/VM", "a/KATA", "a/C"),
                container=ContainerUse("environment", pass_nodes=True),
                environment=ContainerVariable(void=False),
            ),
        ),
        vgpu=VGPUS,
        aliases={"10de:2204": "BIG", "GRID_T4-1Q": "SMALL"},
        domains={0x1AF4: "virtio.example.com", 0x1002: "example.com"},
        pci_ids="/usr/share/pci.ids",
        nodes="cdev",
        cdi=CdiConfig("/run/cdi", only=True, annotations=True, kind="resource", environment=False),
        rescan_seconds=2.5,
        dra=DraConfig("gpu.example.com", environment=False, evict=True, binding_conditions=True),
        fabric=FABRIC,
        usb=(
            UsbRule("example.com/KEY", (UsbSelector(0x0529, 0x0001, "0012"),), dra=True),
            UsbRule("example.com/SET", (UsbSelector(0x08E6, 0x3437), UsbSelector(0x0529, 0x0002))),
        ),
    )


@pytest.mark.parametrize("text", ["vgpu: {layout: [{parent: '#0', type: a}]}", "kubevirt: {cluster: true}"])
def test_what_is_not_said_is_left_to_the_defaults(path: Path, text: str) -> None:
    config = read(path, text)
    assert config._replace(vgpu=config.vgpu._replace(layout=())) == Config()


def test_parts_that_are_there_have_defaults_as_well(path: Path) -> None:
    config = read(path, RULES % "" + "cdi: {}\ndra: {}")
    assert (config.cdi, config.dra) == (CdiConfig(), DraConfig())
    assert config.cdi == CdiConfig(only=False, annotations=False, kind="launcherkit.io/vfio", environment=True)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "# nothing",
        "resources:\naliases:\nvgpu: {layout: }",
        '{"auto": null}',
        "resources: []\nkubevirt: {}\nrescanSeconds: 5",
        "aliases: {10de:2204: BIG}",
    ],
)
def test_a_configuration_that_says_nothing_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plugin.yaml").write_text(text)
    with raises_code(EMPTY_PLUGIN_CONFIG) as raised:
        read_config("plugin.yaml")
    assert [f"LK704: {raised.value.message}"] == provoked("config", "LK704")
    assert read_config("plugin.yaml", auto="gpu").config.auto == "gpu"


def test_json_is_yaml(path: Path) -> None:
    text = '{"resources": [{"select": [{"vendors": ["1002"], "numaNodes": [1]}]}], "rescanSeconds": 5}'
    config = read(path, text)
    assert config.pci == (PciRule(select=(Selector(vendors=frozenset({0x1002}), numa_nodes=frozenset({1})),)),)
    assert config.rescan_seconds == 5


@pytest.mark.parametrize("spelling", ["1002", "0x1002", "'1002'", '"0X1002"'])
def test_an_id_is_hex_however_it_is_written(path: Path, spelling: str) -> None:
    (rule,) = read(path, f"resources: [{{select: [{{vendors: [{spelling}]}}]}}]").pci
    assert rule.select[0].vendors == {0x1002}


@pytest.mark.parametrize(("spelling", "prefix"), [("03", "03"), ("0300", "0300"), ("'12'", "12"), ("0x0302", "0302")])
def test_a_class_is_hex_and_keeps_its_zeros(path: Path, spelling: str, prefix: str) -> None:
    (rule,) = read(path, f"resources: [{{select: [{{classes: [{spelling}]}}]}}]").pci
    assert rule.select[0].classes == (prefix,)


def test_binding_on_demand_has_defaults(path: Path) -> None:
    (rule,) = read(path, "resources: [{select: [{vendors: [10de]}], bind: on-demand}]").pci
    assert (rule.on_demand, rule.bind_seconds, rule.grace_seconds, rule.give_back) == (True, 30, 60, "always")


@pytest.mark.parametrize(("more", "uses"), [("", ("vm", "container")), ("\ncdi: {}", ("vm", "container", "kata"))])
def test_any_is_every_use_that_the_node_has_the_means_for(path: Path, more: str, uses: tuple[str, ...]) -> None:
    (rule,) = read(path, f"resources: [{{name: a/X, use: any, select: [{{vendors: [10de]}}]}}]{more}").pci
    assert (rule.uses, rule.environment.void) == (uses, True)


def test_names_of_other_uses_may_not_clash_either(path: Path) -> None:
    one, other = (
        "{name: a/X, use: any, select: [{vendors: [10de]}]}",
        "{name: a/X-container, select: [{vendors: [1002]}]}",
    )
    with raises_code(NAME_CLASH, match="two resources are called a/X-container"):
        read(path, f"resources: [{one}, {other}]")


def test_auto_stands_behind_the_written_rules(path: Path) -> None:
    text = "resources: [{name: a/B, select: [{vendors: [10de]}]}]"
    written = read(path, text)
    assert read(path, f"auto: gpu\n{text}") == with_auto(written._replace(auto="gpu"))


def test_the_command_line_chooses_auto_before_the_file(path: Path) -> None:
    path.write_text("auto: all")
    assert read_config(str(path), "nvidia").config == with_auto(Config(auto="nvidia"))


RULES = "resources: [{select: [{vendors: [10de]}]%s}]\nvgpu: {mediatedDevices: [{types: [a]}]}\nauto: gpu\n"


def dra_of(config: Config) -> tuple[DraConfig | None, list[bool]]:
    """The driver's settings, and which rules are its."""
    return config.dra, [rule.dra for rule in config.rules]


def test_without_a_rule_for_dra_there_is_no_driver(path: Path) -> None:
    assert dra_of(read(path, RULES % "")) == (None, [False] * 5)


def test_one_rule_for_dra_is_enough_for_a_driver(path: Path) -> None:
    assert dra_of(read(path, RULES % ", dra: true")) == (DraConfig(), [True, False, False, False, False])


def test_all_rules_can_be_for_dra_those_of_auto_too(path: Path) -> None:
    text = RULES % "" + "dra: {all: true, driver: a.b}"
    assert dra_of(read(path, text)) == (DraConfig("a.b", all=True), [True] * 5)


def test_the_command_line_makes_every_rule_one_for_dra(path: Path) -> None:
    path.write_text(RULES % "" + "dra: {evict: true}")
    assert dra_of(read_config(str(path), dra=True).config) == (DraConfig(all=True, evict=True), [True] * 5)


def test_a_driver_may_have_no_device_at_the_moment(path: Path) -> None:
    assert dra_of(read(path, RULES % "" + "dra: {}")) == (DraConfig(), [False] * 5)


def test_what_was_read_is_told_to_those_who_watch_it(path: Path) -> None:
    path.write_text("auto: gpu")
    assert read_config(str(path)).files == (str(path),)


def test_a_table_of_names_is_found_beside_the_file(path: Path) -> None:
    assert read(path, "auto: gpu\npciIds: pci.ids").pci_ids == str(path.with_name("pci.ids"))


# What is wrong


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("auto: amd", "auto: Input should be 'nvidia', 'gpu' or 'all'; found 'amd'"),
        ("resource: []", "resource: unknown key; found a list"),
        ("- a", "the document: Input should be an object; found a list"),
        ("resources: {}", "resources: Input should be a valid list; found an object"),
        ("resources: [{}]", "resources.0.select: Field required; found an object"),
        ("resources: [{select: []}]", "resources.0.select: List should have at least 1 item"),
        ("resources: [{select: [{}]}]", "resources.0.select.0: it selects every function: give at least one criterion"),
        ("resources: [{select: [{vendors: []}]}]", "resources.0.select.0: it selects every function"),
        ("resources: [{select: [{vendor: [10de]}]}]", "resources.0.select.0.vendor: unknown key"),
        ("resources: [{select: [{vendors: [10d]}]}]", "resources.0.select.0.vendors.0: an ID is four hex digits"),
        ("resources: [{select: [{vendors: [true]}]}]", "resources.0.select.0.vendors.0: it must be a string"),
        ("resources: [{select: [{models: [10de]}]}]", "resources.0.select.0.models.0: a pair of IDs is two"),
        ("resources: [{select: [{models: ['10de:x']}]}]", "resources.0.select.0.models.0: an ID is four hex"),
        ("resources: [{select: [{classes: [3]}]}]", "resources.0.select.0.classes.0: a class is two, four or six"),
        ("resources: [{select: [{addresses: ['1:2']}]}]", "resources.0.select.0.addresses.0: not of the form"),
        ("resources: [{select: [{addresses: ['gpu*']}]}]", "resources.0.select.0.addresses.0: an address has hex"),
        ("resources: [{select: [{numaNodes: [-1]}]}]", "resources.0.select.0.numaNodes.0: Input should be greater"),
        ("resources: [{name: GA102, select: [{vendors: [10de]}]}]", "resources.0.name: a resource's name is <domain>"),
        ("resources: [{siblings: all, select: [{vendors: [10de]}]}]", "resources.0.siblings: Input should be 'slot'"),
        (
            "resources: [{environment: {prefix: pci}, select: [{vendors: [10de]}]}]",
            "resources.0.environment.prefix: a prefix has upper case letters",
        ),
        (
            "resources: [{driver: auto, select: [{vendors: [10de]}]}]",
            "resources.0: driver is for `bind: yes` and `bind: on-demand`",
        ),
        (
            "resources: [{driver: mlx5_vfio_pci, bind: yes, select: [{vendors: [10de]}]}]",
            "resources.0.driver: Input",
        ),
        (
            "resources: [{graceSeconds: 5, bind: true, select: [{vendors: [10de]}]}]",
            "resources.0: graceSeconds is for `bind: on-demand`",
        ),
        (
            "resources: [{keepFor: 600, select: [{vendors: [10de]}]}]",
            "resources.0: keepFor is for `sameDevice`",
        ),
        (
            "resources: [{sameDevice: preferred, use: container, select: [{vendors: [10de]}]}]",
            "resources.0: sameDevice is for cards that no container can have, and not for companions",
        ),
        (
            "resources: [{bind: on-demand, whenBound: true, select: [{vendors: [10de]}]}]",
            "resources.0: with `bind: on-demand` they are bound when one is allocated: leave out whenBound",
        ),
        (
            "resources: [{bind: on-demand, select: [{drivers: [nvidia]}]}]",
            "resources.0: with `bind: on-demand` their driver changes",
        ),
        (
            "resources: [{bind: on-demand, bindSeconds: 45, select: [{vendors: [10de]}]}]",
            "resources.0.bindSeconds: Input",
        ),
        (
            "resources: [{sharing: {replicas: 2}, select: [{vendors: [10de]}]}]",
            "resources.0: sharing is not for `use: vm`: a VM doesn't share its cards; it is for `use: container` and",
        ),
        (
            "resources: [{dra: yes, use: kata, sharing: {replicas: 2}, select: [{vendors: [10de]}]}]",
            "resources.0: sharing is not for `use: kata`: a VM doesn't share its cards",
        ),
        (
            "resources: [{use: container, sharing: {replicas: 1}, select: [{vendors: [10de]}]}]",
            "resources.0.sharing.replicas: Input should be greater than or equal to 2",
        ),
        (
            "resources: [{release: rest, select: [{vendors: [10de]}]}]",
            "resources.0.release.word: Input should be 'reset'; found 'rest'",
        ),
        (
            "resources: [{release: {command: [nvme, format]}, select: [{vendors: [10de]}]}]",
            "resources.0.release.mapping: command begins with the path of a program",
        ),
        (
            "resources: [{release: {command: []}, select: [{vendors: [10de]}]}]",
            "resources.0.release.mapping.command: List should have at least 1 item",
        ),
        (
            "resources: [{virtualFunctions: {count: 2}, name: a/B, select: [{vendors: [10de]}]}]",
            "resources.0: a rule with virtualFunctions makes them",
        ),
        (
            "resources: [{virtualFunctions: {autoprobe: yes, driver: igbvf}, select: [{vendors: [10de]}]}]",
            "resources.0.virtualFunctions: with `autoprobe: yes` the kernel binds them at once",
        ),
        (
            "resources: [{virtualFunctions: {autoprobe: yes, mac: stable}, select: [{vendors: [10de]}]}]",
            "resources.0.virtualFunctions: with `autoprobe: yes` the kernel binds them at once",
        ),
        (
            "resources: [{virtualFunctions: {count: 0}, select: [{vendors: [10de]}]}]",
            "resources.0.virtualFunctions.count: Input should be greater than or equal to 1",
        ),
        (
            "resources: [{virtualFunctions: {mac: '01:00:5e:00:00:01'}, select: [{vendors: [10de]}]}]",
            "resources.0.virtualFunctions.mac: 01:00:5e:00:00:01 is not the address of one interface",
        ),
        (
            "resources: [{virtualFunctions: {mac: '02:00:00'}, select: [{vendors: [10de]}]}]",
            "resources.0.virtualFunctions.mac: a MAC address has six pairs of hex digits",
        ),
        (
            "resources: [{virtualFunctions: {driver: ../vfio-pci}, select: [{vendors: [10de]}]}]",
            "resources.0.virtualFunctions.driver: a driver's name has letters",
        ),
        (
            "resources: [{use: container, release: reset, sharing: {replicas: 2}, select: [{vendors: [10de]}]}]",
            "resources.0: give only one of release and sharing",
        ),
        (
            "resources: [{health: {xid: yes}, select: [{vendors: [10de]}]}]",
            "resources.0: health is for `use: container`, without release: waiting for Xids keeps a card open",
        ),
        (
            "resources: [{use: any, bind: on-demand, health: {xid: yes}, select: [{vendors: [10de]}]}]",
            "resources.0: health is for `use: container`, without release",
        ),
        (
            "resources: [{use: container, release: reset, health: {xid: yes}, select: [{vendors: [10de]}]}]",
            "resources.0: health is for `use: container`, without release",
        ),
        (
            "resources: [{use: container, health: {ignoredXids: [13]}, select: [{vendors: [10de]}]}]",
            "resources.0.health: ignoredXids is for `xid: yes`",
        ),
        (
            "resources: [{use: container, health: {xid: yes, ignoredXids: [-1]}, select: [{vendors: [10de]}]}]",
            "resources.0.health.ignoredXids.0: Input should be greater than or equal to 0",
        ),
        (
            "resources: [{use: any, container: {by: cdi, cdiNames: index}, select: [{vendors: [10de]}]}]",
            "resources.0: cdiNames: index is for `use: container`",
        ),
        ("resources: [{use: kata, container: {}, select: [{vendors: [10de]}]}]", "resources.0: container is for `use:"),
        (
            "resources: [{use: container, container: {nodes: [/etc/passwd]}, select: [{vendors: [10de]}]}]",
            "resources.0.container.nodes.0: a device node is a path below /dev",
        ),
        (
            "resources: [{use: container, container: {nodes: [/dev/../etc/passwd]}, select: [{vendors: [10de]}]}]",
            "resources.0.container.nodes.0: a device node is a path below /dev",
        ),
        (
            "resources: [{use: container, container: {by: environment, cdiNames: index}, select: [{vendors: [10de]}]}]",
            "resources.0.container: cdiNames is for `by: cdi`",
        ),
        (
            "resources: [{use: container, bind: yes, select: [{vendors: [10de]}]}]",
            "resources.0: bind is not for `use: container`",
        ),
        (
            "resources: [{use: container, siblings: none, bind: yes, select: [{vendors: [10de]}]}]",
            "resources.0: bind and siblings are not for `use: container`",
        ),
        (
            (
                "resources: [{use: container, container: {by: nodes, cdiNames: index, cdiKind: a/b}, "
                "select: [{virtual: no}]}]"
            ),
            "resources.0.container: cdiKind and cdiNames are for `by: cdi`",
        ),
        (
            "resources: [{use: container, dra: true, container: {cdiNames: index}, select: [{vendors: [10de]}]}]",
            "resources.0.container: cdiNames is for `by: cdi`",
        ),
        (
            "resources: [{use: container, container: {by: cdi, cdiKind: nvidia.com/gpu.}, select: [{virtual: no}]}]",
            "resources.0.container.cdiKind: String should match pattern",
        ),
        (
            "resources: [{use: any, bind: yes, select: [{vendors: [10de]}]}]",
            "resources.0: with `bind: yes` no container could ever have them: say `bind: on-demand`",
        ),
        (
            "resources: [{use: kata, dra: yes, select: [{vendors: [10de]}]}]",
            "resources.0: dra is not for `use: kata`: leave",
        ),
        (
            "resources: [{use: any, dra: on, sharing: {replicas: 2,allocationPolicy: packed}, select: [{virtual: 1}]}]",
            "resources.0: dra is not for `sharing: {allocationPolicy: packed}`: leave out `dra`, and the device plugin",
        ),
        (
            "resources: [{use: any, names: {vm: a/A, kata: a/B}, dra: yes, select: [{vendors: [10de]}]}]",
            "resources.0: dra is not for `names.kata`: leave out `dra`",
        ),
        (
            "resources: [{use: any, container: {by: cdi}, sharing: {replicas: 2}, dra: yes, select: [{virtual: no}]}]",
            "resources.0: dra is not for `container: {by: cdi}`: leave out `dra`",
        ),
        (
            "resources: [{use: container, container: {by: nodes, passDeviceSpecs: yes}, select: [{vendors: [10de]}]}]",
            "resources.0.container: passDeviceSpecs is for `by: environment`",
        ),
        (
            "resources: [{use: any, sharing: {replicas: 2, allocationPolicy: full}, select: [{vendors: [10de]}]}]",
            "resources.0.sharing.allocationPolicy: Input should be 'distributed' or 'packed'",
        ),
        (
            "resources: [{names: {vm: a/A, kata: a/B}, select: [{vendors: [10de]}]}]",
            "resources.0: names is for `use: any`: give `name`",
        ),
        (
            "resources: [{use: any, names: {vm: a/A}, select: [{vendors: [10de]}]}]",
            "resources.0: names has those that get the cards, two at least",
        ),
        (
            "resources: [{use: other, select: [{vendors: [10de]}]}]",
            "resources.0.use: Input should be 'vm', 'kata', 'container' or 'any'; found 'other'",
        ),
        ("aliases: {'10de:22': A}", "aliases.10de:22.[key]: an ID is four hex digits"),
        ("aliases: {T4: nvidia.com/A}", "aliases.T4: a name consists of letters"),
        ("domains: {nvidia: a.b}", "domains.nvidia.[key]: an ID is four hex digits"),
        ("domains: {10de: A}", "domains.10de: a domain consists of lower-case"),
        ("vgpu: {layout: [{parent: '#x', type: a}]}", "vgpu.layout.0: a card by number is #0, #1 and so on"),
        (
            "vgpu: {layout: [{parent: '*', count: 1, gpuInstances: [{profile: 9, count: 1}]}]}",
            "vgpu.layout.0: type is missing",
        ),
        (
            "vgpu: {layout: [{parent: '*', gpuInstances: [{profile: 9, count: 1}, {profile: 9, count: 1}]}]}",
            "vgpu.layout.0: gpuInstances: a profile is there twice",
        ),
        ("vgpu: {layout: [{parent: '*', type: a, count: -1}]}", "vgpu.layout.0.count: Input should be greater"),
        ("vgpu: {mediatedDevices: [{types: []}]}", "vgpu.mediatedDevices.0.types: List should have at least 1 item"),
        ("vgpu: {graceSeconds: .inf}", "vgpu.graceSeconds: Input should be"),
        ("rescanSeconds: 0", "rescanSeconds: Input should be greater than or equal to 1; found '0'"),
        ("rescanSeconds: soon", "rescanSeconds: Input should be a valid number"),
        ("cdi: {folder: cdi}", "cdi.folder: String should match pattern"),
        ("cdi: {kind: nvidia.com/gpu}", "cdi.kind: Input should be 'launcherkit.io/vfio' or 'resource'"),
        ("nodes: both\ncdi: {kind: resource}", "the document: cdi: {kind: resource} names each device once: nodes is"),
        ("dra: {driver: GPU}", "dra.driver: a domain consists of lower-case letters"),
        (f"dra: {{driver: {'a' * 64}}}", "dra.driver: the name of a DRA driver has at most 63 characters"),
        (
            "resources: [{select: [{vendors: [10de]}], companion: true, dra: true}]",
            "resources.0: give only one of companion and dra",
        ),
        ("kubevirt: {file: a, cluster: true}", "kubevirt: give only one of file, cluster and the settings"),
        ("kubevirt: {cluster: true, permittedHostDevices: {}}", "kubevirt: give only one of file"),
        ("a: [", "not YAML: "),
        ("auto: gpu\nauto: all", "not YAML: the key 'auto' appears twice"),
        ("auto: gpu\n---\nauto: all", "more than one YAML document"),
    ],
)
def test_what_is_wrong_is_named_by_file_path_and_value(path: Path, text: str, message: str) -> None:
    (found,) = reported(path, text)
    assert found.startswith(message)


def test_all_that_is_wrong_is_reported_at_once(path: Path) -> None:
    assert len(reported(path, "auto: x\nbogus: 1\nresources: [{select: [{vendors: [1]}], bindd: 1}]")) == 4


def test_the_page_of_the_code_shows_what_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = "resources:\n  - name: GA102\n    select: [{vendors: [nvidia]}]\n"
    messages = [f"LK701: plugin.yaml, {message}" for message in reported(Path("plugin.yaml"), text)]
    assert messages == provoked("config", "LK701")


@pytest.mark.parametrize("missing", ["/no/such/plugin.yaml", "."])
def test_a_file_that_is_not_there_is_named(missing: str) -> None:
    with raises_code(UNREADABLE_FILE, match=missing):
        read_config(missing)


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_whatever_is_in_it_an_error_is_one_short_line_and_never_worse(path: Path, text: str) -> None:
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(LauncherkitError) as raised:
        read_config(str(path))
    for leaf in raised.value.leaves():
        assert leaf.code == BAD_PLUGIN_CONFIG.code
        assert "\n" not in leaf.message
        assert len(leaf.message) < 500


# Names that CDI doesn't allow


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("resources: [{name: a/X.Y, select: [{vendors: [10de]}], use: kata}]", "a/X.Y"),
        ("resources: [{name: a/X.Y, select: [{vendors: [10de]}], use: any}]\ncdi: {}", "a/X.Y-kata"),
        ("resources: [{name: a/X.Y, select: [{vendors: [10de]}]}]\ncdi: {kind: resource}", "a/X.Y"),
        ("vgpu: {mediatedDevices: [{types: [a], name: a/1X}]}\ncdi: {kind: resource}", "a/1X"),
    ],
)
def test_names_of_cdi_files_are_checked_before_there_are_devices(path: Path, text: str, refused: str) -> None:
    with raises_code(CDI_KIND_REFUSED, match=f"^{refused} can't be the kind of a CDI file"):
        read(path, text)


def test_names_of_claims_are_in_no_cdi_file(path: Path) -> None:
    text = "resources: [{name: a/X.Y, select: [{vendors: [10de]}]}]\ncdi: {kind: resource}\ndra: {all: yes}"
    assert read(path, text).pci[0].name == "a/X.Y"


# Names that people gave twice


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("a/X", "a/X"), "two resources are called a/X"),
        (("a/X", "b/X"), "the resources a/X and b/X have the same socket, kubevirt-X.sock"),
        (("a/X.Y", "a/X_Y"), "the resources a/X.Y and a/X_Y have the same variable, PCI_RESOURCE_A_X_Y"),
    ],
)
def test_names_that_clash_are_reported_before_anything_is_advertised(
    path: Path, names: tuple[str, str], message: str
) -> None:
    resources = "".join(f"  - {{name: {name}, select: [{{vendors: [10de]}}]}}\n" for name in names)
    assert reported(path, f"resources:\n{resources}") == [message]


def test_a_pci_resource_and_one_of_vgpus_must_have_two_names(path: Path) -> None:
    vgpu = "vgpu: {virtualFunctions: [{types: [a], name: a/X}]}"
    assert reported(path, f"resources: [{{name: a/X, select: [{{vendors: [10de]}}]}}]\n{vgpu}") == [
        "two resources are called a/X"
    ]


def test_the_page_of_a_clash_shows_what_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plugin.yaml").write_text(
        "resources:\n"
        "  - {name: nvidia.com/BIG, select: [{models: ['10de:2204']}]}\n"
        "  - {name: amd.com/BIG, select: [{models: ['1002:744c']}]}\n"
    )
    with raises_code(NAME_CLASH) as raised:
        read_config("plugin.yaml")
    assert [f"LK702: {raised.value.message}"] == provoked("config", "LK702")


# Layouts alone


def test_a_layout_is_a_file_of_its_own(path: Path) -> None:
    path.write_text("layout:\n  - {parent: '#1', type: GRID T4-2Q, count: 2}\nspread: [nvidia-222]")
    assert read_layout(str(path)) == ((LayoutEntry("#1", "GRID T4-2Q", 2),), ("nvidia-222",))


def test_xids_need_the_binding_of_nvml(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rule = "{use: container, select: [{vendors: [10de]}], health: {xid: %s}}"
    path.write_text(f"resources: [{rule % 'no'}, {rule % 'yes'}]")
    assert [each.watches_xids for each in read_config(str(path)).config.pci] == [False, True]
    monkeypatch.setattr("launcherkit_plugin.config.reading.find_spec", lambda _: None)
    with raises_code(NO_NVML, match=r"resources\.1\.health\.xid: the Python module pynvml is not installed"):
        read_config(str(path))
    path.write_text(f"resources: [{rule % 'no'}]")
    read_config(str(path))


def test_gpu_instances_need_the_binding_of_nvml(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "layout: [{parent: '#1', type: a}, {parent: '#0', gpuInstances: [{profile: 19, count: 1}]}]"
    path.write_text(text)
    assert read_layout(str(path)).layout[1].gpu_instances == (GpuInstances("19", 1),)
    monkeypatch.setattr("launcherkit_plugin.config.reading.find_spec", lambda _: None)
    with pytest.raises(NotInstalled, match=r"layout\.1\.gpuInstances: the Python module pynvml") as caught:
        read_layout(str(path))
    assert caught.value.remedy.startswith("Install the device plugin with its extra `nvml`")
    path.write_text(f"vgpu: {{{text}}}")
    with pytest.raises(NotInstalled, match=r"vgpu\.layout\.1\.gpuInstances"):
        read_config(str(path))


def test_a_wrong_layout_is_reported_whole(path: Path) -> None:
    path.write_text("layout: [{parent: '#1'}]\nlayouts: []")
    with pytest.raises(SeveralErrors, match=r"layout.0: type is missing.*layouts: unknown key"):
        read_layout(str(path))


def test_a_note_says_what_the_variable_of_nvidias_runtime_lets_any_pod_do(tmp_path: Path) -> None:
    path = tmp_path / "plugin.yaml"
    rule = "resources: [{use: container, name: a/B, container: {by: %s}, select: [{vendors: [10de]}]}]"
    for by, told in (("environment", True), ("cdi", False), ("nodes", False)):
        path.write_text(rule % by)
        notes = read_config(str(path)).notes
        assert [note.topic for note in notes] == ["by-environment"] * told
        assert all("accept-nvidia-visible-devices-envvar-when-unprivileged" in note.text for note in notes)


@pytest.mark.parametrize(
    ("more", "select", "told"),
    [
        ("", "vendors: [10de]", True),
        ("", "models: ['10de:2204']", True),
        ("", "classes: ['03']", True),
        ("", "vendors: [1002]", False),
        ("container: {by: nodes}, ", "vendors: [10de]", False),
        ("container: {by: environment}, ", "vendors: [10de]", True),
    ],
)
def test_the_same_note_is_on_claims_which_give_nvidias_cards_by_the_variable(
    tmp_path: Path, more: str, select: str, told: bool
) -> None:
    path = tmp_path / "plugin.yaml"
    path.write_text(f"resources: [{{use: container, dra: true, {more}select: [{{{select}}}]}}]\ndra: {{}}")
    notes = read_config(str(path)).notes
    assert [note.topic for note in notes] == ["by-environment"] * told
    assert all("by a variable" in note.text and "`by: cdi`" not in note.text for note in notes)


ONE_RULE = "resources: [{name: a/B, select: [{vendors: [10de]}]}]"


def test_fabric_manager_listens_on_a_socket_or_at_an_address(path: Path) -> None:
    start = f"{ONE_RULE}\nfabric: "
    assert read(path, start + "{}").fabric == FabricConfig(socket="/run/nvidia-fabricmanager/socket")
    assert read(path, start + "{socket: /run/fm}").fabric == FabricConfig(socket="/run/fm")
    (message,) = reported(path, start + '{socket: /run/fm, address: "127.0.0.1"}')
    assert message.startswith("fabric: give only one of socket and address")


@pytest.mark.parametrize(
    ("usb", "wrong"),
    [
        ("{selectors: [{vendor: 0529, product: 0001}]}", "usb.0.name"),
        ("{name: a/C}", "usb.0.selectors"),
        ("{name: a/C, selectors: []}", "usb.0.selectors"),
        ("{name: a/C, selectors: [{vendor: 0529}]}", "usb.0.selectors.0.product"),
        ("{name: a/C, selectors: [{vendor: 529, product: 0001}]}", "an ID is four hex digits"),
        ("{name: a/C, selectors: [{vendor: 0529, product: 0001, serial: ''}]}", "usb.0.selectors.0.serial"),
        (
            "{name: a/C, dra: yes, selectors: [{vendor: 0529, product: 0001}, {vendor: 0529, product: 0002}]}",
            "with DRA",
        ),
    ],
)
def test_what_is_wrong_about_usb_devices_is_named(path: Path, usb: str, wrong: str) -> None:
    (message,) = reported(path, f"usb: [{usb}]")
    assert wrong in message


def test_rules_for_usb_devices_may_have_one_name_if_they_agree_and_it_is_no_others(path: Path) -> None:
    rule = "{name: a/B, selectors: [{vendor: 0529, product: 0001}]"
    assert len(read(path, f"usb: [{rule}}}, {rule}}}]").usb) == 2
    (message,) = reported(path, f"usb: [{rule}}}, {rule}, dra: yes}}]")
    assert "rules of a/B say different things for dra" in message
    with raises_code(NAME_CLASH, "two resources are called a/B"):
        read(path, f"{ONE_RULE}\nusb: [{rule}}}]")


def test_all_by_dra_leaves_to_the_device_plugin_what_goes_together(path: Path) -> None:
    one, both = "{vendor: 0529, product: 0001}", "{vendor: 0529, product: 0001}, {vendor: 0529, product: 0002}"
    config = read(
        path, f"usb: [{{name: a/B, selectors: [{one}]}}, {{name: a/C, selectors: [{both}]}}]\ndra: {{all: yes}}"
    )
    assert [rule.dra for rule in config.usb] == [True, False]


@pytest.mark.parametrize(
    ("fabric", "wrong"),
    [
        ("{socket: run/fm}", "fabric.socket"),
        (f"{{socket: /{'x' * 107}}}", "fabric.socket"),
        ("{address: localhost}", "fabric.address"),
        ('{modules: {"0": "1b:00.0"}}', "a module ID is a number from 1"),
        ('{modules: {"1": "1b"}}', "fabric.modules.1"),
        ('{modules: {"1": "1b:00.0", "2": "0000:1B:00.0"}}', "two of them have one address"),
    ],
)
def test_what_is_wrong_about_fabric_manager_is_named(path: Path, fabric: str, wrong: str) -> None:
    (message,) = reported(path, f"{ONE_RULE}\nfabric: {fabric}")
    assert wrong in message
