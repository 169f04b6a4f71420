from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class NodeContext(_message.Message):
    __slots__ = ("node_name",)
    NODE_NAME_FIELD_NUMBER: _ClassVar[int]
    node_name: str
    def __init__(self, node_name: _Optional[str] = ...) -> None: ...

class ExecuteNodeHookRequest(_message.Message):
    __slots__ = ("hookPoint", "vmi", "node_context")
    HOOKPOINT_FIELD_NUMBER: _ClassVar[int]
    VMI_FIELD_NUMBER: _ClassVar[int]
    NODE_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    hookPoint: str
    vmi: bytes
    node_context: NodeContext
    def __init__(self, hookPoint: _Optional[str] = ..., vmi: _Optional[bytes] = ..., node_context: _Optional[_Union[NodeContext, _Mapping]] = ...) -> None: ...

class ExecuteNodeHookResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
