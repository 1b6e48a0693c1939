"""Words for keys: 2,500 pairs of an adjective and a noun."""

_ADJECTIVES = """
able ancient bitter blue brave brief bright broad calm clever cold cosy crisp curious damp dark deep dry dusty early
fancy fierce fresh gentle giant golden green happy hollow humble icy jolly keen late lazy little lively lucky mild misty
narrow noisy old pale plain proud quick quiet rapid wild
"""
_NOUNS = """
anchor apple arrow basket beacon bell bird bottle bridge candle canyon carpet castle cloud coat desert dragon drum eagle
engine feather ferry forest fountain garden glacier hammer harbour island kettle ladder lantern lemon meadow mirror
mountain needle ocean orchard paper pencil piano planet quarry river saddle ship tower valley window
"""
ADJECTIVES = tuple(_ADJECTIVES.split())
NOUNS = tuple(_NOUNS.split())
