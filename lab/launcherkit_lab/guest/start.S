/* A kernel for tests: multiboot header, stack, and C. */
    .text
    .align 4                /* the header must be within the first 8 KiB of the file */
    .long 0x1BADB002
    .long 0
    .long -0x1BADB002
    .globl _start
_start:
    cli
    mov $top, %esp
    push %ebx               /* multiboot's information */
    call guest
1:  hlt
    jmp 1b
    .bss
    .align 16
    .space 4096
top:
    .section .note.GNU-stack, "", @progbits
